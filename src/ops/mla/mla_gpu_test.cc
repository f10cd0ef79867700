// Cache records and attention on the GPU: the host's bytes; one set of bits for lists and dense contexts, any batch and
// any place of the pages; near the reference.
#include <cstring>

#include "num/record_codec.h"
#include "ops/mla/mla_cases.h"

namespace perigee::ops {
namespace {

using testing::MlaCase;
using testing::MlaInputs;
using testing::PagedSequence;

std::vector<bf16> wild_values(uint64_t seed, int64_t n) {
  std::vector<bf16> out = testing::random_half(seed, n, 3.0);
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t r = random_bits(seed + 1, static_cast<uint64_t>(i));
    if (r % 7 == 0) out[static_cast<size_t>(i)].bits = static_cast<uint16_t>(r >> 20);
  }
  return out;
}

TEST(PageIoGpu, WritesTheBytesOfTheHost) {
  const Context* const gpu = testing::gpu();
  if (gpu == nullptr) GTEST_SKIP() << "no GPU";
  const int64_t rows = 150;
  struct Widths {
    int64_t c, r;
  };
  for (const Widths w : {Widths{512, 64}, Widths{64, 32}, Widths{48, 7}, Widths{16, 0}}) {
    std::vector<bf16> latent = wild_values(1, rows * w.c), rope = wild_values(2, rows * w.r + 1),
                      keys = wild_values(3, rows * w.c);
    for (int format = 0; format < 3; ++format) {
      const LatentFormat l =
          std::array{LatentFormat::kBf16, LatentFormat::kFp8, LatentFormat::kNvfp4}[static_cast<size_t>(format)];
      const KeyFormat k = std::array{KeyFormat::kBf16, KeyFormat::kFp8, KeyFormat::kMxfp4}[static_cast<size_t>(format)];
      for (const bool latents : {true, false}) {
        const int64_t bytes = latents ? latent_bytes(l, w.c, w.r) : key_bytes(k, w.c);
        if (bytes == 0) continue;
        PagedSequence host(200, bytes, 64, 5), there(200, bytes, 64, 5);
        for (const bool on_gpu : {false, true}) {
          const Context context = on_gpu ? *gpu : testing::cpu();
          PagedSequence& pages = on_gpu ? there : host;
          const testing::StepParts parts(context, {{0, rows, 37, pages.blocks(), {}, 0}}, rows);
          testing::BytesOnDevice pool(context, pages.pool());
          testing::OnDevice on(context);
          if (latents) {
            write_latents(context, on(testing::view(latent, {rows, w.c})), on(testing::view(rope, {rows, w.r})), l,
                          parts(), pages.place(pool.data()));
          } else {
            write_keys(context, on(testing::view(keys, {rows, w.c})), k, parts(), pages.place(pool.data()));
          }
        }
        int64_t differing = 0;
        for (size_t i = 0; i < host.pool().size(); ++i) differing += host.pool()[i] != there.pool()[i];
        EXPECT_EQ(differing, 0) << "format " << format << ", latents " << latents << ", width " << w.c;
      }
    }
  }
}

struct Result {
  std::vector<bf16> out;
  std::vector<float> lse;
};

// The last `rows` of the case's rows, in calls of `size` rows; with lists of every position if `listed`.
Result attend(const Context& context, const MlaCase& c, MlaInputs& in, int64_t size, uint64_t order, bool listed,
              bool divided = false) {
  const int64_t bytes = latent_bytes(c.format, c.c, c.r);
  PagedSequence pages(c.tokens, bytes, 64, order);
  {
    const testing::StepParts parts(testing::cpu(), {{0, c.tokens, 0, pages.blocks(), {}, 0}}, c.tokens);
    write_latents(testing::cpu(), testing::view(in.latent, {c.tokens, c.c}), testing::view(in.rope, {c.tokens, c.r}),
                  c.format, parts(), pages.place());
  }
  Result result = {std::vector<bf16>(static_cast<size_t>(c.rows * c.heads * c.c)),
                   std::vector<float>(static_cast<size_t>(c.rows * c.heads))};
  testing::BytesOnDevice pool(context, pages.pool());
  for (int64_t done = 0; done < c.rows; done += size) {
    const int64_t n = std::min(size, c.rows - done);
    const int64_t position = c.tokens - c.rows + done;
    const testing::StepParts parts(context, {{0, n, position, pages.blocks(), {}, 0}}, n);
    std::vector<int32_t> lists(static_cast<size_t>(n * c.tokens), -1), places = lists, counts;
    const tensor::PagePlace there = pages.place(pool.data());
    for (int64_t i = 0; i < n; ++i) {
      counts.push_back(static_cast<int32_t>(position + i + 1));
      for (int64_t k = 0; k <= position + i; ++k)
        lists[static_cast<size_t>(i * c.tokens + k)] = static_cast<int32_t>(k);
      for (int64_t k = 0; k <= position + i; ++k)
        places[static_cast<size_t>(i * c.tokens + k)] = there.place({0, 0, 0, pages.blocks().data()}, k);
    }
    const std::array<int64_t, 4> dims = mla_workspace(context.device, divided ? n : 0, c.heads, c.c, c.tokens, 1 << 28);
    std::vector<float> partial(static_cast<size_t>(dims[0] * dims[1] * dims[2] * dims[3]));
    testing::OnDevice on(context);  // after all that it brings back
    const Tensor workspace = on(testing::view(partial, {dims[0], dims[1], dims[2], dims[3]}));
    const Selection selection = {on(testing::view(lists, {n, c.tokens})), on(testing::view(counts, {n})),
                                 divided ? on(testing::view(places, {n, c.tokens})) : Tensor()};
    const int64_t width = c.c + c.r;
    mla(context, on(tensor::view(in.q.data() + done * c.heads * width, {n, c.heads, width})), c.format, c.c,
        testing::mla_scale(c), parts(), pages.place(pool.data()), listed ? &selection : nullptr, workspace,
        on(tensor::view(result.out.data() + done * c.heads * c.c, {n, c.heads, c.c})),
        on(tensor::view(result.lse.data() + done * c.heads, {n, c.heads})));
  }
  return result;
}

// Every way of these cases, bit by bit, and their distance from the reference.
void keep_the_bits(const Context* gpu, const std::vector<MlaCase>& cases) {
  double worst = 0;
  for (const MlaCase& c : cases) {
    MlaInputs in = testing::mla_inputs(c, 17);
    const Result whole = attend(*gpu, c, in, c.rows, 0, false);
    const std::tuple<int64_t, uint64_t, bool, bool> ways[] = {
        {1, 0, false, false}, {c.rows, 9, false, false}, {c.rows, 0, true, false}, {2, 4, true, false},
        {1, 3, false, true},  {3, 0, true, true},        {c.rows, 5, false, true}};
    for (const auto& [size, order, listed, divided] : ways) {
      const Result got = attend(*gpu, c, in, size, order, listed, divided);
      ASSERT_TRUE(testing::same_bits(got.out, whole.out))
          << c.heads << " heads, calls of " << size << ", listed " << listed;
      ASSERT_TRUE(testing::same_bits(got.lse, whole.lse));
    }
    // Against double, from the very records.
    const int64_t bytes = latent_bytes(c.format, c.c, c.r), width = c.c + c.r;
    PagedSequence pages(c.tokens, bytes, 64, 0);
    const testing::StepParts all(testing::cpu(), {{0, c.tokens, 0, pages.blocks(), {}, 0}}, c.tokens);
    write_latents(testing::cpu(), testing::view(in.latent, {c.tokens, c.c}), testing::view(in.rope, {c.tokens, c.r}),
                  c.format, all(), pages.place());
    std::vector<double> q = testing::widen(in.q), out(whole.out.size()), lse(whole.lse.size());
    const testing::StepParts last(testing::reference(), {{0, c.rows, c.tokens - c.rows, pages.blocks(), {}, 0}},
                                  c.rows);
    mla(testing::reference(), tensor::view(q.data(), {c.rows, c.heads, width}), c.format, c.c, testing::mla_scale(c),
        last(), pages.place(), nullptr, {}, tensor::view(out.data(), {c.rows, c.heads, c.c}),
        tensor::view(lse.data(), {c.rows, c.heads}));
    // Weights and result are rounded to BF16 once each; the sum of weights moves with its terms.
    const double error = testing::relative_norm(testing::widen(whole.out), out);
    worst = std::max(worst, error);
    EXPECT_LE(error, 2 * testing::kRound16) << c.heads << " heads, width " << c.c;
    for (size_t i = 0; i < lse.size(); ++i)
      EXPECT_NEAR(whole.lse[i], lse[i], testing::kRound16 + 1e-5 * std::abs(lse[i]));
  }
  std::cout << "largest relative error " << worst << std::endl;
}

TEST(MlaGpu, ListsBatchesAndPagesKeepTheBitsNearTheReference) {
  const Context* const gpu = testing::gpu();
  if (gpu == nullptr) GTEST_SKIP() << "no GPU";
  std::vector<MlaCase> cases = testing::mla_cases();
  for (const LatentFormat f : {LatentFormat::kBf16, LatentFormat::kFp8, LatentFormat::kNvfp4})
    cases.push_back({f, 12, 512, 64, 700, 9});
  cases.push_back({LatentFormat::kFp8, 96, 512, 64, 300, 2});
  keep_the_bits(gpu, cases);
}

// Contexts of several stretches.
TEST(MlaGpu, LongContextsKeepTheBits) {
  const Context* const gpu = testing::gpu();
  if (gpu == nullptr) GTEST_SKIP() << "no GPU";
  keep_the_bits(gpu, {{LatentFormat::kFp8, 3, 64, 32, 5000, 3}, {LatentFormat::kNvfp4, 6, 512, 64, 2049, 2}});
}

// Rows of a pool that lie beyond 2^31 and 2^32 bytes, and a physical row that is large by itself.
TEST(MlaGpu, RecordsBeyondFourGiBAreFound) {
  const Context* const gpu = testing::gpu();
  if (gpu == nullptr) GTEST_SKIP() << "no GPU";
  const MlaCase c = {LatentFormat::kFp8, 6, 512, 64, 190, 3};
  MlaInputs in = testing::mla_inputs(c, 23);
  const Result near = attend(*gpu, c, in, c.rows, 0, false);
  constexpr int64_t kRowBytes = (int64_t{5} << 29) + 256;  // 2.5 GiB
  const std::vector<int32_t> blocks = {1, 0, 2};
  auto arena = tensor::GpuArena::create(static_cast<size_t>(2 * kRowBytes + (1 << 20)), "a large pool");
  if (!arena.ok()) GTEST_SKIP() << arena.error().message;
  const tensor::PagePlace far = {arena->data(), kRowBytes, 64, latent_bytes(c.format, c.c, c.r)};
  std::vector<bf16> out(near.out.size());
  std::vector<float> lse(near.lse.size());
  std::vector<int32_t> lists, places, counts;
  for (int64_t i = 0; i < c.rows; ++i) {
    counts.push_back(static_cast<int32_t>(c.tokens - c.rows + i + 1));
    for (int32_t k = 0; k < c.tokens; ++k) {
      lists.push_back(k);
      places.push_back(far.place({0, 0, 0, blocks.data()}, k));
    }
  }
  for (const bool physical : {false, true}) {
    testing::OnDevice on(*gpu);
    const testing::StepParts all(*gpu, {{0, c.tokens, 0, blocks, {}, 0}}, c.tokens);
    write_latents(*gpu, on(testing::view(in.latent, {c.tokens, c.c})), on(testing::view(in.rope, {c.tokens, c.r})),
                  c.format, all(), far);
    const testing::StepParts last(*gpu, {{0, c.rows, c.tokens - c.rows, blocks, {}, 0}}, c.rows);
    const Selection selection = {on(testing::view(lists, {c.rows, c.tokens})), on(testing::view(counts, {c.rows})),
                                 on(testing::view(places, {c.rows, c.tokens}))};
    mla(*gpu, on(testing::view(in.q, {c.rows, c.heads, c.c + c.r})), c.format, c.c, testing::mla_scale(c), last(), far,
        physical ? &selection : nullptr, {}, on(testing::view(out, {c.rows, c.heads, c.c})),
        on(testing::view(lse, {c.rows, c.heads})));
    on.fetch();
    EXPECT_TRUE(testing::same_bits(out, near.out)) << "physical rows " << physical;
    EXPECT_TRUE(testing::same_bits(lse, near.lse));
  }
}

}  // namespace
}  // namespace perigee::ops
