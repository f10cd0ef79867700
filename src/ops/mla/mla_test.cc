#include "ops/mla/mla.h"

#include <sys/mman.h>

#include <limits>

#include "ops/mla/mla_cases.h"

namespace perigee::ops {
namespace {

using testing::isas;
using testing::MlaCase;
using testing::MlaInputs;
using testing::PagedSequence;
using testing::reference;
using testing::same_bits;
using testing::widen;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// One list of positions per row; none at all means dense.
using Lists = std::vector<std::vector<int32_t>>;

// How a case is run: in pieces of `chunk` rows per call, with this page layout.
struct Layout {
  int64_t chunk = 1 << 30;
  int64_t block_tokens = 64;
  uint64_t order = 0;
};

struct Attended {
  std::vector<bf16> out;
  std::vector<float> lse;
};

bool operator==(const Attended& a, const Attended& b) {
  return same_bits(a.out, b.out) && same_bits(a.lse, b.lse);
}

struct PaddedLists {
  std::vector<int32_t> positions, counts;
  Selection selection;
};

// Lists as the operation takes them; what stands behind a list is garbage that must not be read.
void pad(const Lists& lists, PaddedLists* out) {
  int64_t width = 1;
  for (const std::vector<int32_t>& l : lists)
    width = std::max(width, static_cast<int64_t>(l.size()));
  const int64_t n = static_cast<int64_t>(lists.size());
  out->positions.assign(static_cast<size_t>(n * width), 1 << 30);
  for (int64_t t = 0; t < n; ++t) {
    const std::vector<int32_t>& l = lists[static_cast<size_t>(t)];
    std::copy(l.begin(), l.end(), out->positions.begin() + t * width);
    out->counts.push_back(static_cast<int32_t>(l.size()));
  }
  out->selection = {tensor::view(out->positions.data(), {n, width}),
                    tensor::view(out->counts.data(), {n})};
}

Attended run(const Context& context, const MlaCase& c, const MlaInputs& in, const Lists& lists = {},
             const Layout& layout = {}) {
  PagedSequence pages(c.tokens, latent_bytes(c.format, c.c, c.r), layout.block_tokens,
                      layout.order);
  const PageWrite write{0, c.tokens, 0, pages.view()};
  write_latents(context, testing::view(in.latent, {c.tokens, c.c}),
                testing::view(in.rope, {c.tokens, c.r}), c.format, {&write, 1});
  PaddedLists padded;
  if (!lists.empty()) pad(lists, &padded);
  Attended result{std::vector<bf16>(static_cast<size_t>(c.rows * c.heads * c.c)),
                  std::vector<float>(static_cast<size_t>(c.rows * c.heads))};
  const Tensor q = testing::view(in.q, {c.rows, c.heads, c.c + c.r});
  const Tensor out = tensor::view(result.out.data(), {c.rows, c.heads, c.c});
  const Tensor lse = tensor::view(result.lse.data(), {c.rows, c.heads});
  for (int64_t first = 0; first < c.rows; first += layout.chunk) {
    const int64_t n = std::min(layout.chunk, c.rows - first);
    const MlaSequence s{0, n, c.tokens - c.rows + first, pages.view()};
    Selection part;
    if (!lists.empty()) {
      part = {padded.selection.positions.slice(first, n), padded.selection.counts.slice(first, n)};
    }
    mla(context, q.slice(first, n), c.format, c.c, testing::mla_scale(c), {&s, 1},
        lists.empty() ? nullptr : &part, out.slice(first, n), lse.slice(first, n));
  }
  return result;
}

struct Exact {
  std::vector<double> out, lse;
};

Exact run_reference(const MlaCase& c, const MlaInputs& in, const Lists& lists = {}) {
  std::vector<double> q = widen(in.q), latent = widen(in.latent), rope = widen(in.rope);
  PagedSequence pages(c.tokens, latent_bytes(c.format, c.c, c.r), 64, 3);
  const PageWrite write{0, c.tokens, 0, pages.view()};
  write_latents(reference(), tensor::view(latent.data(), {c.tokens, c.c}),
                tensor::view(rope.data(), {c.tokens, c.r}), c.format, {&write, 1});
  PaddedLists padded;
  if (!lists.empty()) pad(lists, &padded);
  Exact result{std::vector<double>(static_cast<size_t>(c.rows * c.heads * c.c)),
               std::vector<double>(static_cast<size_t>(c.rows * c.heads))};
  const MlaSequence s{0, c.rows, c.tokens - c.rows, pages.view()};
  mla(reference(), tensor::view(q.data(), {c.rows, c.heads, c.c + c.r}), c.format, c.c,
      testing::mla_scale(c), {&s, 1}, lists.empty() ? nullptr : &padded.selection,
      tensor::view(result.out.data(), {c.rows, c.heads, c.c}),
      tensor::view(result.lse.data(), {c.rows, c.heads}));
  return result;
}

// About half of what each row may see.
Lists random_lists(const MlaCase& c, uint64_t seed) {
  Lists lists(static_cast<size_t>(c.rows));
  for (int64_t t = 0; t < c.rows; ++t) {
    for (int32_t p = 0; p <= c.tokens - c.rows + t; ++p) {
      if (random_bits(seed, static_cast<uint64_t>(t * c.tokens + p)) % 2 == 0)
        lists[static_cast<size_t>(t)].push_back(p);
    }
  }
  return lists;
}

Lists full_lists(const MlaCase& c) {
  Lists lists(static_cast<size_t>(c.rows));
  for (int64_t t = 0; t < c.rows; ++t) {
    for (int32_t p = 0; p <= c.tokens - c.rows + t; ++p) lists[static_cast<size_t>(t)].push_back(p);
  }
  return lists;
}

TEST(Mla, ReferenceOnHandNumbers) {
  // Records (1, 0 | 2) and (0, 4 | -1), query (1, 0 | 1): scores 3 and -1.
  std::vector<double> latent = {1, 0, 0, 4}, rope = {2, -1}, q = {1, 0, 1};
  PagedSequence pages(2, 24, 64, 0);
  const PageWrite write{0, 2, 0, pages.view()};
  write_latents(reference(), tensor::view(latent.data(), {2, 2}), tensor::view(rope.data(), {2, 1}),
                LatentFormat::kF64, {&write, 1});
  double out[2], lse;
  const MlaSequence s{0, 1, 1, pages.view()};
  mla(reference(), tensor::view(q.data(), {1, 1, 3}), LatentFormat::kF64, 2, 0.5, {&s, 1}, nullptr,
      tensor::view(out, {1, 1, 2}), tensor::view(&lse, {1, 1}));
  const double a = std::exp(1.5), b = std::exp(-0.5);
  EXPECT_NEAR(out[0], a / (a + b), 1e-15);
  EXPECT_NEAR(out[1], 4 * b / (a + b), 1e-15);
  EXPECT_NEAR(lse, std::log(a + b), 1e-15);
}

// The error of a score is at most (C + r + 2) roundings of its absolute sum; that of a weight twice
// the largest of those, plus one rounding per slot and a few per piece; the output rounds once to
// BF16.
void expect_agreement(const MlaCase& c, const MlaInputs& in, const Lists& lists) {
  const Exact want = run_reference(c, in, lists);
  const Attended got = run(testing::cpu(), c, in, lists);
  const double width = static_cast<double>(c.c + c.r);
  double q_max = 0, x_max = 0;
  for (const bf16 x : in.q) q_max = std::max(q_max, std::abs(widen(x)));
  for (const bf16 x : in.latent) x_max = std::max(x_max, std::abs(widen(x)));
  for (const bf16 x : in.rope) x_max = std::max(x_max, std::abs(widen(x)));
  x_max *= 1.25;  // a format moves a value by less than a quarter of the largest
  const double absolute_score = width * q_max * x_max * testing::mla_scale(c);
  const double score = (width + 2) * testing::kRound32 * absolute_score;
  const double slots = static_cast<double>(c.tokens);
  const double weight = 2 * score + (2 * slots + 16) * testing::kRound32;
  for (size_t i = 0; i < got.out.size(); ++i) {
    const double slack = weight * x_max;
    ASSERT_LE(std::abs(widen(got.out[i]) - want.out[i]),
              slack + testing::kRound16 * (std::abs(want.out[i]) + slack) + testing::kFlushed)
        << i << ": " << widen(got.out[i]) << " against " << want.out[i];
  }
  for (size_t i = 0; i < got.lse.size(); ++i) {
    if (std::isinf(want.lse[i])) {
      ASSERT_EQ(got.lse[i], want.lse[i]);
      continue;
    }
    ASSERT_LE(std::abs(got.lse[i] - want.lse[i]),
              weight + 4 * testing::kRound32 * std::abs(want.lse[i]))
        << i;
  }
}

TEST(Mla, CpuAgreesWithTheReferenceWithinRounding) {
  for (const MlaCase& c : testing::mla_cases()) {
    const MlaInputs in = testing::mla_inputs(c, 20);
    expect_agreement(c, in, {});
    expect_agreement(c, in, random_lists(c, 21));
  }
}

TEST(Mla, TheModelsOwnShape) {
  for (const LatentFormat format :
       {LatentFormat::kBf16, LatentFormat::kFp8, LatentFormat::kNvfp4}) {
    const MlaCase c{format, 96, 512, 64, 600, 1};
    const MlaInputs in = testing::mla_inputs(c, 22);
    if (isas().back() != Isa::kGeneric) expect_agreement(c, in, random_lists(c, 23));
  }
}

TEST(Mla, SameBitsOnEveryInstructionSetThreadCountChunkAndPageOrder) {
  for (const MlaCase& c : testing::mla_cases()) {
    const MlaInputs in = testing::mla_inputs(c, 24);
    for (const Lists& lists : {Lists{}, random_lists(c, 25)}) {
      const Attended want = run(testing::cpu(Isa::kGeneric), c, in, lists);
      for (const Isa isa : isas()) {
        for (int threads = 1; threads <= 3; ++threads) {
          if (isa == Isa::kGeneric && threads != 2) continue;  // plain code is slow
          const Context context = testing::cpu(isa, threads);
          ASSERT_TRUE(run(context, c, in, lists) == want)
              << testing::isa_name(isa) << ", threads " << threads;
          if (isa == Isa::kGeneric) continue;
          for (const int64_t chunk : {1, 2, 7, 64}) {
            ASSERT_TRUE(run(context, c, in, lists, {chunk, 64, 0}) == want) << "chunk " << chunk;
          }
          for (const int64_t block_tokens : {64, 128, 1024}) {
            ASSERT_TRUE(run(context, c, in, lists, {1 << 30, block_tokens, 99}) == want)
                << "block " << block_tokens;
          }
        }
      }
    }
  }
}

// A selection of everything is the dense attention, bit for bit; leaving one position out is not.
TEST(Mla, ListOfEverythingEqualsDense) {
  for (const MlaCase& c : testing::mla_cases()) {
    const MlaInputs in = testing::mla_inputs(c, 26);
    const Attended dense = run(testing::cpu(), c, in);
    Lists lists = full_lists(c);
    ASSERT_TRUE(run(testing::cpu(), c, in, lists) == dense);
    // Rows that do not see everything go another way through the code: mix both kinds.
    for (size_t t = 0; t < lists.size(); t += 3) {
      if (lists[t].size() > 1) lists[t].erase(lists[t].begin());
    }
    const Attended mixed = run(testing::cpu(), c, in, lists);
    const size_t row = static_cast<size_t>(c.heads * c.c);
    for (size_t t = 0; t < lists.size(); ++t) {
      const bool whole =
          static_cast<int64_t>(lists[t].size()) == c.tokens - c.rows + static_cast<int64_t>(t) + 1;
      const bool same = std::memcmp(&mixed.out[t * row], &dense.out[t * row], row * 2) == 0;
      ASSERT_EQ(same, whole) << t;
    }
  }
}

TEST(Mla, PrefillInBlocksEqualsDecode) {
  const MlaCase c{LatentFormat::kFp8, 5, 32, 8, 700, 300};
  const MlaInputs in = testing::mla_inputs(c, 27);
  const Attended want = run(testing::cpu(), c, in, {}, {1, 64, 0});
  for (int threads = 1; threads <= 3; ++threads) {
    for (const int64_t chunk : {13, 64, 100, 300}) {
      ASSERT_TRUE(run(testing::cpu(isas().back(), threads), c, in, {}, {chunk, 128, 4}) == want)
          << chunk;
    }
  }
}

TEST(Mla, EmptyListsGiveZeros) {
  const MlaCase c{LatentFormat::kBf16, 3, 20, 4, 80, 4};
  const MlaInputs in = testing::mla_inputs(c, 28);
  const Lists lists = {{}, {5, 70}, {}, {79}};
  for (const Isa isa : isas()) {
    const Attended got = run(testing::cpu(isa, 2), c, in, lists);
    for (size_t i = 0; i < 60; ++i) EXPECT_EQ(got.out[i].bits, 0);
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(got.lse[i], -kInf);
    EXPECT_TRUE(std::isfinite(got.lse[3]));
    // A single slot has weight one: its own values come back.
    for (int64_t h = 0; h < 3; ++h) {
      for (int64_t d = 0; d < 20; ++d) {
        EXPECT_EQ(got.out[static_cast<size_t>((9 + h) * 20 + d)].bits,
                  in.latent[static_cast<size_t>(79 * 20 + d)].bits);
      }
    }
  }
  expect_agreement(c, in, lists);
}

// With one visible token its record comes back whole: every code of the narrow formats is read
// right.
TEST(Mla, EveryCodeOfARecordComesBack) {
  std::vector<uint8_t> fp8(256), nvfp4;
  for (int i = 0; i < 256; ++i)
    fp8[static_cast<size_t>(i)] = static_cast<uint8_t>((i & 0x7f) == 0x7f ? 0 : i);
  // 126 groups of 16 elements: all codes in each, and every finite scale above zero.
  const int64_t groups = 126;
  nvfp4.assign(static_cast<size_t>(groups * 9), 0);
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t i = 0; i < 8; ++i)
      nvfp4[static_cast<size_t>(g * 8 + i)] = static_cast<uint8_t>(2 * i | (2 * i + 1) << 4);
    nvfp4[static_cast<size_t>(groups * 8 + g)] = static_cast<uint8_t>(g + 1);
  }
  for (const Isa isa : isas()) {
    for (const LatentFormat format : {LatentFormat::kFp8, LatentFormat::kNvfp4}) {
      const std::vector<uint8_t>& record = format == LatentFormat::kFp8 ? fp8 : nvfp4;
      const int64_t c = format == LatentFormat::kFp8 ? 256 : groups * 16;
      PagedSequence pages(1, latent_bytes(format, c, 0), 64, 0);
      std::memcpy(pages.view().page(0), record.data(), record.size());
      std::vector<double> want(static_cast<size_t>(c));
      read_latent(format, pages.view(), 0, c, 0, want.data());
      std::vector<bf16> q(static_cast<size_t>(c)), out(static_cast<size_t>(c));
      float lse;
      const MlaSequence s{0, 1, 0, pages.view()};
      mla(testing::cpu(isa), testing::view(q, {1, 1, c}), format, c, 1.0, {&s, 1}, nullptr,
          tensor::view(out.data(), {1, 1, c}), tensor::view(&lse, {1, 1}));
      EXPECT_EQ(lse, 0.0f);
      for (int64_t i = 0; i < c; ++i) {
        ASSERT_EQ(to_float(out[static_cast<size_t>(i)]), want[static_cast<size_t>(i)])
            << testing::isa_name(isa) << ", " << i;
      }
    }
  }
}

// What is not listed, or lies after the row, must not count, not even as 0 * NaN.
TEST(Mla, NanOutsideTheListDoesNotCount) {
  const MlaCase c{LatentFormat::kBf16, 4, 32, 8, 70, 70};
  MlaInputs in = testing::mla_inputs(c, 29);
  Lists lists = full_lists(c);
  for (std::vector<int32_t>& l : lists) {
    if (l.size() > 40) l.erase(l.begin() + 40);
  }
  const Attended clean = run(testing::cpu(), c, in, lists);
  for (int64_t d = 0; d < 32; ++d) in.latent[static_cast<size_t>(40 * 32 + d)] = to_bf16(kNan);
  for (const Isa isa : isas()) {
    EXPECT_TRUE(run(testing::cpu(isa), c, in, lists) == clean);
    const Attended dense = run(testing::cpu(isa), c, in);
    const Exact exact = run_reference(c, in);
    for (size_t i = 0; i < dense.out.size(); ++i) {
      ASSERT_EQ(std::isnan(to_float(dense.out[i])), i >= 40 * 4 * 32) << i;
      ASSERT_EQ(std::isnan(exact.out[i]), i >= 40 * 4 * 32) << i;
    }
  }
}

TEST(Mla, ScoresOfMinusInfinityWeighNothing) {
  // The extra dims alone carry the infinity, so that values stay finite.
  const MlaCase c{LatentFormat::kBf16, 2, 16, 1, 200, 2};
  MlaInputs in = testing::mla_inputs(c, 30);
  for (int64_t h = 0; h < 4; ++h) in.q[static_cast<size_t>(h * 17 + 16)] = to_bf16(1.0f);
  // Whole pieces of -inf before, between and after.
  for (const auto& [begin, end] : {std::pair{0, 64}, std::pair{0, 199}, std::pair{64, 128},
                                   std::pair{130, 200}, std::pair{0, 200}}) {
    MlaInputs masked = in;
    for (int p = begin; p < end; ++p) masked.rope[static_cast<size_t>(p)] = to_bf16(-kInf);
    expect_agreement(c, masked, {});
    const Attended got = run(testing::cpu(), c, masked);
    for (const bf16 x : got.out) ASSERT_FALSE(std::isnan(to_float(x)));
    if (end - begin == 200) {
      for (const float x : got.lse) EXPECT_EQ(x, -kInf);
    }
  }
  MlaInputs bright = in;
  bright.rope[3] = to_bf16(kInf);
  for (const bf16 x : run(testing::cpu(), c, bright).out) EXPECT_TRUE(std::isnan(to_float(x)));
  for (const double x : run_reference(c, bright).out) EXPECT_TRUE(std::isnan(x));
}

TEST(Mla, LargeScoresDoNotOverflow) {
  const MlaCase c{LatentFormat::kBf16, 3, 32, 0, 150, 2};
  MlaInputs in = testing::mla_inputs(c, 31);
  for (bf16& x : in.q) x = to_bf16(to_float(x) * 1000);
  const Exact want = run_reference(c, in);
  const Attended got = run(testing::cpu(), c, in);
  for (size_t i = 0; i < got.lse.size(); ++i) {
    EXPECT_TRUE(std::isfinite(got.lse[i]));
    EXPECT_NEAR(got.lse[i], want.lse[i], 1e-5 * std::abs(want.lse[i]));
  }
  for (const bf16 x : got.out) EXPECT_TRUE(std::isfinite(to_float(x)));
}

TEST(Mla, SequencesOfOneBatchDoNotMix) {
  const MlaCase a{LatentFormat::kFp8, 3, 40, 8, 200, 4};
  const MlaCase b{LatentFormat::kFp8, 3, 40, 8, 90, 1};
  const MlaInputs x = testing::mla_inputs(a, 32);
  const MlaInputs y = testing::mla_inputs(b, 33);
  const Attended want_a = run(testing::cpu(), a, x);
  const Attended want_b = run(testing::cpu(), b, y);
  PagedSequence pages_a(200, 48, 64, 1);
  PagedSequence pages_b(90, 48, 128, 2);
  const PageWrite write_a{0, 200, 0, pages_a.view()};
  const PageWrite write_b{0, 90, 0, pages_b.view()};
  write_latents(testing::cpu(), testing::view(x.latent, {200, 40}), testing::view(x.rope, {200, 8}),
                a.format, {&write_a, 1});
  write_latents(testing::cpu(), testing::view(y.latent, {90, 40}), testing::view(y.rope, {90, 8}),
                a.format, {&write_b, 1});
  std::vector<bf16> q = y.q;
  q.insert(q.end(), x.q.begin(), x.q.end());
  for (int threads = 1; threads <= 3; ++threads) {
    std::vector<bf16> out(5 * 3 * 40);
    std::vector<float> lse(15);
    const std::vector<MlaSequence> sequences = {{1, 4, 196, pages_a.view()},
                                                {0, 1, 89, pages_b.view()}};
    mla(testing::cpu(isas().back(), threads), testing::view(q, {5, 3, 48}), a.format, 40,
        testing::mla_scale(a), sequences, nullptr, tensor::view(out.data(), {5, 3, 40}),
        tensor::view(lse.data(), {5, 3}));
    EXPECT_EQ(std::memcmp(out.data(), want_b.out.data(), 120 * 2), 0);
    EXPECT_EQ(std::memcmp(&out[120], want_a.out.data(), 480 * 2), 0);
    EXPECT_EQ(std::memcmp(&lse[3], want_a.lse.data(), 12 * 4), 0);
  }
}

TEST(Mla, RowIdsBeyondFourGigabytes) {
  const int64_t row_bytes = 64 * 1152;
  const int32_t rows[2] = {60000, 2};  // 60,000 * 73,728 bytes = 4.12 GiB
  const size_t size = static_cast<size_t>(row_bytes) * 60001;
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const MlaCase c{LatentFormat::kBf16, 2, 512, 64, 100, 1};
  const MlaInputs in = testing::mla_inputs(c, 34);
  const Attended want = run(testing::cpu(), c, in);
  const tensor::PageView pages{static_cast<std::byte*>(memory), row_bytes, rows, 64, 1152};
  const PageWrite write{0, 100, 0, pages};
  write_latents(testing::cpu(), testing::view(in.latent, {100, 512}),
                testing::view(in.rope, {100, 64}), c.format, {&write, 1});
  Attended got{std::vector<bf16>(1024), std::vector<float>(2)};
  const MlaSequence s{0, 1, 99, pages};
  mla(testing::cpu(), testing::view(in.q, {1, 2, 576}), c.format, 512, testing::mla_scale(c),
      {&s, 1}, nullptr, tensor::view(got.out.data(), {1, 2, 512}),
      tensor::view(got.lse.data(), {1, 2}));
  EXPECT_TRUE(got == want);
  munmap(memory, size);
}

TEST(Mla, RepeatsGiveTheSameBitsAndNoRowsAreNoWork) {
  const MlaCase c{LatentFormat::kNvfp4, 9, 64, 16, 300, 12};
  const MlaInputs in = testing::mla_inputs(c, 35);
  const Attended want = run(testing::cpu(isas().back(), 3), c, in);
  for (int repeat = 0; repeat < 3; ++repeat)
    EXPECT_TRUE(run(testing::cpu(isas().back(), 3), c, in) == want);
  const MlaCase none{LatentFormat::kBf16, 9, 64, 16, 10, 0};
  EXPECT_TRUE(run(testing::cpu(), none, testing::mla_inputs(none, 36)).out.empty());
}

}  // namespace
}  // namespace perigee::ops
