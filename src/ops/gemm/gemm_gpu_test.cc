// Dense products on the GPU: one set of bits for any number of tokens, near the reference.
#include <cstring>

#include "ops/gemm/gemm.h"
#include "ops/op_test.h"

namespace perigee::ops {
namespace {

using tensor::WeightLayout;

struct Shape {
  int64_t n, k;
};

// Full segments, several of them, ends inside a block, odd widths.
const Shape kShapes[] = {{64, 128}, {48, 1792}, {100, 3584}, {40, 7168}, {33, 70}, {5, 9}, {130, 900}, {17, 1}};
constexpr int64_t kRows = 100;

struct Matrix {
  std::vector<bf16> rows;
  std::vector<uint8_t> packed;
};

Matrix random_matrix(const Shape& s, uint64_t seed) {
  Matrix m = {testing::random_half(seed, s.n * s.k, 0.1), {}};
  m.packed.assign(static_cast<size_t>(gemm_packed_bytes(WeightLayout::kFragmentBf16, s.n, s.k)), uint8_t{0xee});
  // In two parts, the second one first.
  const int64_t cut = s.n / 3;
  gemm_pack_rows(WeightLayout::kFragmentBf16, m.rows.data() + cut * s.k, s.n - cut, s.k, s.k, m.packed.data(), s.n,
                 cut);
  gemm_pack_rows(WeightLayout::kFragmentBf16, m.rows.data(), cut, s.k, s.k, m.packed.data(), s.n, 0);
  return m;
}

// Rows [begin, begin + count) of x times the matrix; `gap` elements between rows.
std::vector<float> product(const Context& context, const std::vector<bf16>& x, int64_t begin, int64_t count,
                           const Shape& s, Matrix& m, int64_t gap) {
  std::vector<int64_t> pick;
  for (int64_t i = 0; i < count; ++i) pick.push_back(begin + i);
  testing::Rows<bf16> in(x, s.k, pick, gap);
  testing::Rows<float> out(count, s.n, gap);
  {
    testing::BytesOnDevice packed(context, m.packed);
    testing::OnDevice on(context);
    gemm(context, on(in.tensor()), {WeightLayout::kFragmentBf16, s.n, s.k, packed.data(), nullptr}, on(out.tensor()));
  }
  return out.dense();
}

TEST(GemmGpu, AnyNumberOfTokensHasTheSameBitsNearTheReference) {
  const Context* const gpu = testing::gpu();
  if (gpu == nullptr) GTEST_SKIP() << "no GPU";
  for (const Shape& s : kShapes) {
    Matrix m = random_matrix(s, 3);
    const std::vector<bf16> x = testing::random_half(4, kRows * s.k, 1.0);
    const std::vector<float> whole = product(*gpu, x, 0, kRows, s, m, 0);
    for (const auto& [count, gap] :
         {std::pair<int64_t, int64_t>{1, 0}, {1, 3}, {7, 0}, {8, 2}, {13, 1}, {30, 0}, {33, 0}, {64, 8}}) {
      const std::vector<float> some = product(*gpu, x, 20, count, s, m, gap);
      ASSERT_EQ(std::memcmp(some.data(), whole.data() + 20 * s.n, some.size() * sizeof(float)), 0)
          << s.n << " x " << s.k << ", " << count << " tokens, gap " << gap;
    }
    for (int64_t t = 0; t < kRows; ++t) {
      for (int64_t n = 0; n < s.n; ++n) {
        double want = 0, magnitude = 0;
        for (int64_t k = 0; k < s.k; ++k) {
          const double term = testing::widen(x[static_cast<size_t>(t * s.k + k)]) *
                              testing::widen(m.rows[static_cast<size_t>(n * s.k + k)]);
          want += term;
          magnitude += std::abs(term);
        }
        // A step of 16 columns aligns its terms to the largest one and cuts: two units in the last place of what has
        // been summed.
        const double steps =
            static_cast<double>(gemm_gpu_segment(s.k) / 16 + (s.k + kGemmSegmentGpu - 1) / kGemmSegmentGpu);
        ASSERT_LE(std::abs(whole[static_cast<size_t>(t * s.n + n)] - want),
                  steps * 0x1p-22 * magnitude + testing::kFlushed)
            << s.n << " x " << s.k << ", token " << t << ", output " << n;
      }
    }
  }
}

TEST(GemmGpu, ManyItemsInOneCall) {
  const Context* const gpu = testing::gpu();
  if (gpu == nullptr) GTEST_SKIP() << "no GPU";
  const Shape s = {24, 40};
  constexpr int64_t kItems = 96;  // heads, more than a launch takes
  constexpr int64_t kTokens = 5;
  std::vector<Matrix> matrices;
  for (uint64_t i = 0; i < kItems; ++i) matrices.push_back(random_matrix(s, 100 + i));
  std::vector<bf16> x = testing::random_half(5, kTokens * kItems * s.k, 1.0);
  std::vector<bf16> out(static_cast<size_t>(kTokens * kItems * s.n));
  {
    testing::OnDevice on(*gpu);
    const Tensor x_there = on(tensor::view(x.data(), {kTokens, kItems * s.k}));
    const Tensor out_there = on(tensor::view(out.data(), {kTokens, kItems * s.n}));
    std::vector<GemmItem> items;
    for (int64_t i = 0; i < kItems; ++i) {
      Matrix& m = matrices[static_cast<size_t>(i)];
      const Tensor w = on(tensor::view(m.packed.data(), {static_cast<int64_t>(m.packed.size())}));
      items.push_back({x_there.columns(i * s.k, s.k),
                       {WeightLayout::kFragmentBf16, s.n, s.k, w.data, nullptr},
                       out_there.columns(i * s.n, s.n)});
    }
    gemm_batched(*gpu, items);
  }
  for (int64_t i = 0; i < kItems; ++i) {
    std::vector<bf16> mine;
    for (int64_t t = 0; t < kTokens; ++t) {
      const bf16* const row = x.data() + (t * kItems + i) * s.k;
      mine.insert(mine.end(), row, row + s.k);
    }
    const std::vector<float> alone = product(*gpu, mine, 0, kTokens, s, matrices[static_cast<size_t>(i)], 0);
    for (int64_t t = 0; t < kTokens; ++t) {
      for (int64_t n = 0; n < s.n; ++n) {
        ASSERT_EQ(out[static_cast<size_t>((t * kItems + i) * s.n + n)].bits,
                  to_bf16(alone[static_cast<size_t>(t * s.n + n)]).bits);
      }
    }
  }
}

}  // namespace
}  // namespace perigee::ops
