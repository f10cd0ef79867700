#include "ops/page_io/page_io.h"

#include <sys/mman.h>

#include "num/record_codec.h"
#include "ops/op_test.h"
#include "ops/page_io/page_io_cases.h"

namespace perigee::ops::testing {
namespace {

const LatentFormat kLatentFormats[] = {LatentFormat::kBf16, LatentFormat::kFp8,
                                       LatentFormat::kNvfp4};
const KeyFormat kKeyFormats[] = {KeyFormat::kBf16, KeyFormat::kFp8, KeyFormat::kMxfp4};

// Ordinary values, random bit patterns and every special value.
std::vector<bf16> wild_values(uint64_t seed, int64_t n) {
  const uint16_t special[] = {0x0000, 0x8000, 0x7f80, 0xff80, 0x7fc0,
                              0x0001, 0x8001, 0x3f80, 0x43e0, 0x7f7f};
  std::vector<bf16> out = random_half(seed, n, 3.0);
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t r = random_bits(seed + 1, static_cast<uint64_t>(i));
    if (r % 7 == 0) out[static_cast<size_t>(i)].bits = static_cast<uint16_t>(r >> 20);
    if (r % 97 == 0) out[static_cast<size_t>(i)].bits = special[(r >> 8) % std::size(special)];
  }
  return out;
}

std::vector<float> floats(const bf16* x, int64_t n) {
  std::vector<float> out(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) out[static_cast<size_t>(i)] = to_float(x[i]);
  return out;
}

struct Widths {
  int64_t c, r;
};

TEST(PageIo, LatentsHaveTheBitsOfThePlainCodecOnEveryInstructionSet) {
  const int64_t rows = 150;
  for (const Widths w :
       {Widths{512, 64}, Widths{64, 32}, Widths{48, 7}, Widths{13, 3}, Widths{16, 0}}) {
    std::vector<bf16> latent = wild_values(1, rows * w.c);
    std::vector<bf16> rope = wild_values(2, rows * w.r + 1);
    for (const LatentFormat format : kLatentFormats) {
      const int64_t bytes = latent_bytes(format, w.c, w.r);
      if (bytes == 0) {
        EXPECT_NE(w.c % 16, 0);
        continue;
      }
      for (const Isa isa : isas()) {
        for (int threads = 1; threads <= 3; ++threads) {
          PagedSequence pages(200, bytes, 64, 5);
          const PageWrite write{0, rows, 37, pages.view()};
          write_latents(cpu(isa, threads), tensor::view(latent.data(), {rows, w.c}),
                        tensor::view(rope.data(), {rows, w.r}), format, {&write, 1});
          for (int64_t i = 0; i < rows; ++i) {
            std::vector<uint8_t> want(static_cast<size_t>(bytes));
            encode_latent(format, floats(&latent[i * w.c], w.c).data(), w.c,
                          floats(&rope[i * w.r], w.r).data(), w.r, want.data());
            const int64_t p = 37 + i;
            ASSERT_EQ(std::memcmp(want.data(), pages.view().page(p) + p % 64 * bytes, want.size()),
                      0)
                << isa_name(isa) << ", row " << i << ", format " << static_cast<int>(format) << ", "
                << w.c;
          }
        }
      }
    }
  }
}

TEST(PageIo, KeysHaveTheBitsOfThePlainCodecOnEveryInstructionSet) {
  const int64_t rows = 150;
  for (const int64_t j : {128, 32, 64, 7, 40, 130, 256}) {
    std::vector<bf16> keys = wild_values(3, rows * j);
    for (const KeyFormat format : kKeyFormats) {
      if (key_bytes(format, j) == 0) continue;
      for (const Isa isa : isas()) {
        PagedSequence pages(200, key_bytes(format, j), 128, 6);
        const PageWrite write{0, rows, 20, pages.view()};
        write_keys(cpu(isa, 2), tensor::view(keys.data(), {rows, j}), format, {&write, 1});
        for (int64_t i = 0; i < rows; ++i) {
          std::vector<uint8_t> values(static_cast<size_t>(key_value_bytes(format, j)));
          std::vector<uint8_t> scales(static_cast<size_t>(key_scale_bytes(format, j)) + 1);
          encode_key(format, floats(&keys[i * j], j).data(), j, values.data(), scales.data());
          const int64_t p = 20 + i;
          const std::byte* page = pages.view().page(p);
          ASSERT_EQ(
              std::memcmp(values.data(), page + p % 64 * key_value_bytes(format, j), values.size()),
              0)
              << isa_name(isa) << ", row " << i << ", format " << static_cast<int>(format) << ", "
              << j;
          ASSERT_EQ(std::memcmp(scales.data(), page + key_scale_offset(format, j, p % 64),
                                scales.size() - 1),
                    0)
              << isa_name(isa) << ", row " << i << ", format " << static_cast<int>(format) << ", "
              << j;
        }
      }
    }
  }
}

TEST(PageIo, Fp8KeyPageHoldsValuesFirstAndScalesLast) {
  std::vector<bf16> key(128, to_bf16(448.0f));
  PagedSequence pages(64, 132, 64, 0);
  const PageWrite write{0, 1, 5, pages.view()};
  write_keys(cpu(), tensor::view(key.data(), {1, 128}), KeyFormat::kFp8, {&write, 1});
  const uint8_t* page = reinterpret_cast<const uint8_t*>(pages.view().page(0));
  for (int64_t i = 0; i < 128; ++i) EXPECT_EQ(page[5 * 128 + i], 0x7e);
  float scale;
  std::memcpy(&scale, page + 64 * 128 + 5 * 4, 4);
  EXPECT_EQ(scale, 1.0f);
}

// Writing the middle of a sequence leaves every other byte of the pool alone, whatever the block
// size.
TEST(PageIo, NeighbouringBytesStayUntouched) {
  for (const int64_t block_tokens : {64, 128, 1024}) {
    const int64_t bytes = latent_bytes(LatentFormat::kFp8, 64, 8);
    PagedSequence pages(3 * block_tokens, bytes, block_tokens, 9);
    const int64_t first = block_tokens - 3;
    const int64_t rows = block_tokens + 10;
    std::vector<bf16> latent(static_cast<size_t>(rows * 64), to_bf16(1.0f));
    std::vector<bf16> rope(static_cast<size_t>(rows * 8), to_bf16(1.0f));
    const PageWrite write{0, rows, first, pages.view()};
    write_latents(cpu(), tensor::view(latent.data(), {rows, 64}),
                  tensor::view(rope.data(), {rows, 8}), LatentFormat::kFp8, {&write, 1});
    // What was written reads back; then it is painted over, and nothing but canaries remains.
    for (int64_t p = first; p < first + rows; ++p) {
      std::byte* record = pages.view().page(p) + p % 64 * bytes;
      for (int64_t i = 0; i < bytes; ++i) ASSERT_EQ(static_cast<int>(record[i]), 0x38);
      std::memset(record, kCanary, static_cast<size_t>(bytes));
    }
    for (const uint8_t byte : pages.pool()) ASSERT_EQ(byte, kCanary);
  }
}

TEST(PageIo, NeighbouringKeysStayUntouched) {
  for (const KeyFormat format : kKeyFormats) {
    const int64_t bytes = key_bytes(format, 64);
    PagedSequence pages(384, bytes, 128, 9);
    std::vector<bf16> keys(70 * 64, to_bf16(1.0f));
    const PageWrite write{0, 70, 100, pages.view()};
    write_keys(cpu(), tensor::view(keys.data(), {70, 64}), format, {&write, 1});
    for (int64_t p = 100; p < 170; ++p) {
      std::byte* page = pages.view().page(p);
      std::memset(page + key_value_offset(format, 64, p % 64), kCanary,
                  static_cast<size_t>(key_value_bytes(format, 64)));
      std::memset(page + key_scale_offset(format, 64, p % 64), kCanary,
                  static_cast<size_t>(key_scale_bytes(format, 64)));
    }
    for (const uint8_t byte : pages.pool()) ASSERT_EQ(byte, kCanary) << static_cast<int>(format);
  }
}

TEST(PageIo, BlockOrderAndBatchDoNotChangeRecords) {
  const int64_t c = 64;
  const int64_t r = 16;
  const int64_t rows = 300;
  std::vector<bf16> latent = random_half(4, rows * c, 2.0);
  std::vector<bf16> rope = random_half(5, rows * r, 2.0);
  const Tensor a = tensor::view(latent.data(), {rows, c});
  const Tensor b = tensor::view(rope.data(), {rows, r});
  for (const LatentFormat format : kLatentFormats) {
    const int64_t bytes = latent_bytes(format, c, r);
    PagedSequence plain(rows, bytes, 64, 0);
    const PageWrite whole{0, rows, 0, plain.view()};
    write_latents(cpu(), a, b, format, {&whole, 1});
    for (const int64_t block_tokens : {64, 128, 1024}) {
      PagedSequence mixed(rows, bytes, block_tokens, 77);
      const std::vector<PageWrite> parts = {{200, 100, 200, mixed.view()},
                                            {0, 1, 0, mixed.view()},
                                            {1, 0, 1, mixed.view()},
                                            {1, 199, 1, mixed.view()}};
      write_latents(cpu(Isa::kGeneric, 3), a, b, format, parts);
      for (int64_t p = 0; p < rows; ++p) {
        std::vector<double> x(static_cast<size_t>(c + r));
        std::vector<double> y(static_cast<size_t>(c + r));
        read_latent(format, plain.view(), p, c, r, x.data());
        read_latent(format, mixed.view(), p, c, r, y.data());
        ASSERT_TRUE(same_bits(x, y)) << p;
      }
    }
  }
}

TEST(PageIo, RowIdsBeyondFourGigabytes) {
  const int64_t row_bytes = 64 * 1152;
  // 60,000 * 73,728 bytes = 4.12 GiB; a wrapped offset would fall between rows 1,745 and 1,746.
  const int32_t far = 60000;
  const size_t size = static_cast<size_t>(row_bytes) * (far + 1);
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const tensor::PageView pages{static_cast<std::byte*>(memory), row_bytes, &far, 64, 1152};
  std::vector<bf16> latent = random_half(6, 512, 1.0);
  std::vector<bf16> rope = random_half(7, 64, 1.0);
  const PageWrite write{0, 1, 63, pages};
  write_latents(cpu(), tensor::view(latent.data(), {1, 512}), tensor::view(rope.data(), {1, 64}),
                LatentFormat::kBf16, {&write, 1});
  const std::byte* record = static_cast<std::byte*>(memory) + size - 1152;
  EXPECT_EQ(std::memcmp(record, latent.data(), 1024), 0);
  EXPECT_EQ(std::memcmp(record + 1024, rope.data(), 128), 0);
  std::vector<double> back(576);
  read_latent(LatentFormat::kBf16, pages, 63, 512, 64, back.data());
  EXPECT_EQ(back[0], to_float(latent[0]));
  EXPECT_EQ(back[575], to_float(rope[63]));
  munmap(memory, size);
}

TEST(PageIo, ReferenceKeepsDoublesOrFollowsTheFormat) {
  std::vector<double> latent = {1.0 / 3, -2.0 / 3};
  std::vector<double> rope = {1e-9};
  PagedSequence exact(64, 24, 64, 0);
  PageWrite write{0, 1, 3, exact.view()};
  write_latents(reference(), tensor::view(latent.data(), {1, 2}), tensor::view(rope.data(), {1, 1}),
                LatentFormat::kF64, {&write, 1});
  double back[3];
  read_latent(LatentFormat::kF64, exact.view(), 3, 2, 1, back);
  EXPECT_EQ(back[0], 1.0 / 3);
  EXPECT_EQ(back[2], 1e-9);
  PagedSequence rounded(64, 3, 64, 0);
  write.pages = rounded.view();
  write_latents(reference(), tensor::view(latent.data(), {1, 2}), tensor::view(rope.data(), {1, 1}),
                LatentFormat::kFp8, {&write, 1});
  read_latent(LatentFormat::kFp8, rounded.view(), 3, 2, 1, back);
  EXPECT_EQ(back[0], 0.34375);
  EXPECT_EQ(back[1], -0.6875);
  EXPECT_EQ(back[2], 0.0);
  std::vector<double> key = {896.0, -2.0};
  PagedSequence keys(64, key_bytes(KeyFormat::kFp8, 2), 64, 0);
  write.pages = keys.view();
  write_keys(reference(), tensor::view(key.data(), {1, 2}), KeyFormat::kFp8, {&write, 1});
  read_key(KeyFormat::kFp8, keys.view(), 3, 2, back);
  EXPECT_EQ(back[0], 896.0);
  EXPECT_EQ(back[1], -2.0);
}

TEST(PageIo, StridedRowsAndEmptyWrites) {
  std::vector<bf16> wide = random_half(8, 4 * 100, 1.0);
  const Tensor all = tensor::view(wide.data(), {4, 100});
  PagedSequence pages(64, 2 * (32 + 4), 64, 0);
  const std::vector<PageWrite> writes = {{1, 2, 10, pages.view()}};
  write_latents(cpu(), all.columns(8, 32), all.columns(60, 4), LatentFormat::kBf16, writes);
  write_latents(cpu(), all.columns(8, 32), all.columns(60, 4), LatentFormat::kBf16, {});
  std::vector<double> back(36);
  read_latent(LatentFormat::kBf16, pages.view(), 11, 32, 4, back.data());
  EXPECT_EQ(back[0], to_float(wide[208]));
  EXPECT_EQ(back[35], to_float(wide[263]));
}

}  // namespace
}  // namespace perigee::ops::testing
