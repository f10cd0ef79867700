// Experts on the GPU: MXFP4 has the bits of dense products on the dequantised matrix, whatever the grouping.
#include <cstring>

#include "num/formats.h"
#include "ops/gemm/gemm.h"
#include "ops/moe_gemm/moe_gemm.h"
#include "ops/moe_permute/moe_permute.h"
#include "ops/op_test.h"

namespace perigee::ops {
namespace {

using tensor::WeightLayout;

struct Shape {
  int64_t n, k;
};
const Shape kShapes[] = {{128, 256}, {96, 64}, {64, 3584}, {40, 96}, {200, 1024}, {16, 32}};
constexpr int64_t kExperts = 5;
constexpr int64_t kTokens = 60;

// Every code, and scales from the smallest to the largest that the layout holds.
struct Experts {
  std::vector<uint8_t> mxfp4, dense;
  std::vector<std::vector<bf16>> values;

  Experts(const Shape& s, bool extreme) {
    const int64_t code_bytes = s.n * s.k / 2, groups = s.n * s.k / 32;
    const int64_t packed = moe_packed_bytes(WeightLayout::kFragmentMxfp4, s.n, s.k);
    const int64_t dense_bytes = gemm_packed_bytes(WeightLayout::kFragmentBf16, s.n, s.k);
    mxfp4.assign(static_cast<size_t>(packed * kExperts), 0xee);
    dense.assign(static_cast<size_t>(dense_bytes * kExperts), 0xee);
    for (int64_t e = 0; e < kExperts; ++e) {
      std::vector<uint8_t> codes, scales;
      for (int64_t i = 0; i < code_bytes; ++i)
        codes.push_back(static_cast<uint8_t>(random_bits(static_cast<uint64_t>(e), static_cast<uint64_t>(i))));
      for (int64_t i = 0; i < groups; ++i) {
        const uint64_t r = random_bits(static_cast<uint64_t>(e) + 50, static_cast<uint64_t>(i));
        scales.push_back(static_cast<uint8_t>(extreme ? 1 + r % 128 : 119 + r % 6));
      }
      EXPECT_TRUE(moe_packable(WeightLayout::kFragmentMxfp4, scales.data(), groups));
      // Rows in parts that end inside tiles and blocks, in any order.
      const int64_t cuts[] = {0, s.n / 5, s.n / 2, s.n};
      for (const int i : {2, 0, 1}) {
        const int64_t begin = cuts[i], count = cuts[i + 1] - cuts[i];
        moe_pack_mxfp4(WeightLayout::kFragmentMxfp4, codes.data() + begin * s.k / 2, scales.data() + begin * s.k / 32,
                       count, s.k, mxfp4.data() + e * packed, s.n, begin);
      }
      std::vector<bf16> rows;
      for (int64_t i = 0; i < s.n * s.k; ++i) {
        const uint8_t byte = codes[static_cast<size_t>(i / 2)];
        const auto code = static_cast<uint8_t>(i % 2 == 0 ? byte & 15 : byte >> 4);
        rows.push_back(to_bf16(from_e2m1(code) * std::ldexp(1.0f, scales[static_cast<size_t>(i / 32)] - 127)));
      }
      gemm_pack_rows(WeightLayout::kFragmentBf16, rows.data(), s.n, s.k, s.k, dense.data() + e * dense_bytes, s.n, 0);
      values.push_back(std::move(rows));
    }
  }
};

// Expert 0 has no slots, expert 2 many.
std::vector<int32_t> slots_of(int64_t tokens) {
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < tokens; ++t) ids.push_back(t % 3 == 0 ? 1 : t % 7 == 0 ? 4 : 2);
  return ids;
}

std::vector<float> run(const Context& context, const std::vector<bf16>& x, std::vector<int32_t> ids, int64_t first,
                       const Shape& s, std::vector<uint8_t>& packed, WeightLayout layout) {
  const auto t = static_cast<int64_t>(ids.size());
  std::vector<int32_t> offsets(kExperts + 1), source(ids.size()), place(ids.size());
  std::vector<float> grouped(static_cast<size_t>(t * s.n), -7.0f);
  std::vector<bf16> in(x.begin() + first * s.k, x.begin() + (first + t) * s.k);
  {
    testing::BytesOnDevice there(context, packed);
    testing::OnDevice on(context);
    const Tensor o = on(testing::view(offsets, {kExperts + 1}));
    const Tensor from = on(testing::view(source, {t}));
    moe_permute(context, on(testing::view(ids, {t, 1})), kExperts, o, from, on(testing::view(place, {t, 1})));
    std::vector<Weight> experts;
    const int64_t bytes = static_cast<int64_t>(packed.size()) / kExperts;
    for (int64_t e = 0; e < kExperts; ++e) experts.push_back({layout, s.n, s.k, there.data() + e * bytes, nullptr});
    moe_gemm(context, on(testing::view(in, {t, s.k})), &from, o, experts, on(testing::view(grouped, {t, s.n})));
  }
  std::vector<float> out(grouped.size());  // back in the order of tokens
  for (int64_t i = 0; i < t; ++i)
    std::copy_n(grouped.begin() + place[static_cast<size_t>(i)] * s.n, s.n, out.begin() + i * s.n);
  return out;
}

TEST(MoeGemmGpu, EqualsDenseProductsWhateverTheGrouping) {
  const Context* const gpu = testing::gpu();
  if (gpu == nullptr) GTEST_SKIP() << "no GPU";
  for (const Shape& s : kShapes) {
    for (const bool extreme : {false, true}) {
      Experts e(s, extreme);
      const std::vector<bf16> x = testing::random_half(8, kTokens * s.k, 1.0);
      const std::vector<int32_t> ids = slots_of(kTokens);
      const std::vector<float> whole = run(*gpu, x, ids, 0, s, e.mxfp4, WeightLayout::kFragmentMxfp4);
      const std::vector<float> dense = run(*gpu, x, ids, 0, s, e.dense, WeightLayout::kFragmentBf16);
      ASSERT_TRUE(testing::same_bits(whole, dense)) << s.n << " x " << s.k << ", extreme scales " << extreme;
      for (const int64_t first : {int64_t{0}, int64_t{7}, int64_t{41}}) {
        for (const int64_t count : {int64_t{1}, int64_t{5}}) {
          const std::vector<int32_t> some(ids.begin() + first, ids.begin() + first + count);
          const std::vector<float> part = run(*gpu, x, some, first, s, e.mxfp4, WeightLayout::kFragmentMxfp4);
          ASSERT_EQ(std::memcmp(part.data(), whole.data() + first * s.n, part.size() * sizeof(float)), 0);
        }
      }
      for (int64_t t = 0; t < kTokens; ++t) {
        for (int64_t n = 0; n < s.n; ++n) {
          double want = 0, magnitude = 0;
          for (int64_t k = 0; k < s.k; ++k) {
            const double term =
                testing::widen(x[static_cast<size_t>(t * s.k + k)]) *
                testing::widen(
                    e.values[static_cast<size_t>(ids[static_cast<size_t>(t)])][static_cast<size_t>(n * s.k + k)]);
            want += term;
            magnitude += std::abs(term);
          }
          const double steps =
              static_cast<double>(gemm_gpu_segment(s.k) / 16 + (s.k + kGemmSegmentGpu - 1) / kGemmSegmentGpu);
          ASSERT_LE(std::abs(whole[static_cast<size_t>(t * s.n + n)] - want), steps * 0x1p-22 * magnitude + 0x1p-120);
        }
      }
    }
  }
}

TEST(MoePackFragment, RefusesScalesThatItCannotHold) {
  for (const int scale : {0, 1, 127, 128, 129, 254, 255}) {
    const auto byte = static_cast<uint8_t>(scale);
    EXPECT_EQ(moe_packable(WeightLayout::kFragmentMxfp4, &byte, 1), scale <= 128);
    EXPECT_TRUE(moe_packable(WeightLayout::kTiledMxfp4, &byte, 1));
  }
}

TEST(MoePermuteGpu, IsTheStableSortOfTheHost) {
  const Context* const gpu = testing::gpu();
  if (gpu == nullptr) GTEST_SKIP() << "no GPU";
  struct Case {
    int64_t tokens, active, experts;
  };
  for (const Case& c : {Case{1, 16, 896}, Case{700, 16, 896}, Case{300, 3, 7}, Case{2048, 8, 256}, Case{5, 1, 1}}) {
    const int64_t pairs = c.tokens * c.active;
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < pairs; ++i) {
      ids.push_back(static_cast<int32_t>(random_bits(9, static_cast<uint64_t>(i)) % static_cast<uint64_t>(c.experts)));
    }
    std::vector<int32_t> result[2][3];
    for (int device = 0; device < 2; ++device) {
      const Context context = device == 0 ? testing::cpu() : *gpu;
      result[device][0].resize(static_cast<size_t>(c.experts + 1));
      result[device][1].resize(ids.size());
      result[device][2].resize(ids.size());
      testing::OnDevice on(context);
      moe_permute(context, on(testing::view(ids, {c.tokens, c.active})), c.experts,
                  on(testing::view(result[device][0], {c.experts + 1})), on(testing::view(result[device][1], {pairs})),
                  on(testing::view(result[device][2], {c.tokens, c.active})));
    }
    for (int i = 0; i < 3; ++i) EXPECT_EQ(result[0][i], result[1][i]) << c.tokens << " tokens, array " << i;
  }
}

}  // namespace
}  // namespace perigee::ops
