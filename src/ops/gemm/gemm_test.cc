#include "ops/gemm/gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/gemm/gemm_cases.h"

namespace perigee::ops {
namespace {

using tensor::Device;
using tensor::view;
using tensor::WeightLayout;

// A packed matrix and its rows as on disk.
struct Matrix {
  int64_t n;
  int64_t k;
  std::vector<bf16> rows;
  std::vector<std::byte> packed;

  Matrix(int64_t n_, int64_t k_, uint64_t seed, Values values = Values::kPlain)
      : n(n_),
        k(k_),
        rows(random_bf16(seed, n_ * k_, values == Values::kTiny ? 2.0f : 0.1f,
                         values == Values::kSpecial ? values : Values::kPlain)),
        packed(static_cast<size_t>(gemm_packed_bytes(tensor::WeightLayout::kTiledBf16, n_, k_)), std::byte{0xff}) {
    gemm_pack_rows(tensor::WeightLayout::kTiledBf16, rows.data(), n, k, k, packed.data(), n, 0);
  }
  Weight cpu() const { return {WeightLayout::kTiledBf16, n, k, packed.data(), nullptr}; }
  Weight reference() const { return {WeightLayout::kRowMajorBf16, n, k, rows.data(), nullptr}; }
};

std::vector<float> product(const Context& context, const std::vector<bf16>& x, int64_t t,
                           const Matrix& m) {
  std::vector<float> out(static_cast<size_t>(t * m.n), -7.0f);
  gemm(context, input(x.data(), {t, m.k}), m.cpu(), view(out.data(), {t, m.n}));
  return out;
}

uint32_t bits_of(float x) {
  uint32_t u;
  std::memcpy(&u, &x, sizeof(u));
  return u;
}

void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b, const char* what) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(bits_of(a[i]), bits_of(b[i]))
        << what << ", output " << i << ": " << a[i] << " " << b[i];
  }
}

// The contract's arithmetic, written once more as plainly as possible.
float by_definition(const bf16* x, const bf16* w, int64_t k) {
  float total = 0;
  for (int64_t s = 0; s < k; s += kGemmSegment) {
    float acc = 0;
    const int64_t end = std::min(k, s + kGemmSegment);
    for (int64_t b = s; b < end; b += kGemmBlock) {
      float chain[2] = {0, 0};
      for (int64_t c = b; c < b + kGemmBlock; ++c) {
        const float xc = c < k ? to_float(x[c]) : 0.0f;
        const float wc = c < k ? to_float(w[c]) : 0.0f;
        chain[c % 2] = std::fma(xc, wc, chain[c % 2]);
      }
      acc += chain[0] + chain[1];
    }
    total = s == 0 ? acc : total + acc;
  }
  return total;
}

TEST(Gemm, ReferenceOnHandNumbers) {
  ThreadPool pool(2);
  const Context context = make_context(Device::kReference, &pool);
  const double x[] = {1, 2, 3, -1, 0.5, 4};
  const bf16 w[] = {to_bf16(1), to_bf16(-2), to_bf16(0.5), to_bf16(0.25), to_bf16(8), to_bf16(-1)};
  double out[4];
  gemm(context, input(x, {2, 3}), {WeightLayout::kRowMajorBf16, 2, 3, w, nullptr},
       view(out, {2, 2}));
  EXPECT_EQ(out[0], 1 - 4 + 1.5);
  EXPECT_EQ(out[1], 0.25 + 16 - 3);
  EXPECT_EQ(out[2], -1 - 1 + 2);
  EXPECT_EQ(out[3], -0.25 + 4 - 4);
}

TEST(Gemm, PackedLayoutIsPanelsOfColumnPairs) {
  const int64_t n = 19;
  const int64_t k = 37;
  const std::vector<bf16> rows = random_bf16(3, n * k, 1.0f);
  ASSERT_EQ(gemm_packed_bytes(tensor::WeightLayout::kTiledBf16, n, k), 32 * 64 * 2);
  std::vector<bf16> packed(32 * 64, bf16{0x1234});
  // In pieces, last rows first: the pieces do not depend on each other.
  gemm_pack_rows(tensor::WeightLayout::kTiledBf16, rows.data() + 9 * k, 10, k, k, packed.data(), n, 9);
  gemm_pack_rows(tensor::WeightLayout::kTiledBf16, rows.data(), 9, k, k, packed.data(), n, 0);
  for (int64_t r = 0; r < 32; ++r) {
    for (int64_t c = 0; c < 64; ++c) {
      const uint16_t want = r < n && c < k ? rows[r * k + c].bits : 0;
      EXPECT_EQ(packed[r / 16 * 1024 + c / 2 * 32 + r % 16 * 2 + c % 2].bits, want)
          << r << " " << c;
    }
  }
}

TEST(Gemm, PlainCodeIsTheDefinition) {
  ThreadPool pool(1);
  Context context{Device::kCpu, &pool, Isa::kGeneric, false, nullptr};
  for (const Values values : {Values::kPlain, Values::kTiny}) {
    for (const GemmCase& c : kGemmTestCases) {
      if (c.t > 9) continue;
      const Matrix m(c.n, c.k, 11, values);
      const std::vector<bf16> x = random_bf16(12, c.t * c.k, 3.0f, values);
      const std::vector<float> got = product(context, x, c.t, m);
      FlushDenormals flush;
      for (int64_t t = 0; t < c.t; ++t) {
        for (int64_t n = 0; n < c.n; ++n) {
          const float want = by_definition(&x[t * c.k], &m.rows[n * c.k], c.k);
          ASSERT_EQ(bits_of(got[t * c.n + n]), bits_of(want)) << c.t << " " << c.n << " " << c.k;
        }
      }
    }
  }
}

void expect_bits_of_plain_code(Isa isa, bool amx) {
  ThreadPool pool(2);
  const Context plain{Device::kCpu, &pool, Isa::kGeneric, false, nullptr};
  const Context other{Device::kCpu, &pool, isa, amx};
  for (const Values values : {Values::kPlain, Values::kTiny, Values::kSpecial}) {
    for (const GemmCase& c : kGemmTestCases) {
      const Matrix m(c.n, c.k, 21, values);
      const std::vector<bf16> x = random_bf16(22, c.t * c.k, 3.0f, values);
      SCOPED_TRACE(testing::Message() << c.t << " x " << c.n << " x " << c.k << ", values "
                                      << static_cast<int>(values));
      expect_same_bits(product(plain, x, c.t, m), product(other, x, c.t, m), "plain against other");
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(Gemm, Avx2HasTheBitsOfPlainCode) {
  if (!cpu_features().avx2) GTEST_SKIP() << "this machine has no AVX2";
  expect_bits_of_plain_code(Isa::kAvx2, false);
}

TEST(Gemm, Avx512HasTheBitsOfPlainCode) {
  if (!cpu_features().avx512) GTEST_SKIP() << "this machine has no AVX-512";
  expect_bits_of_plain_code(Isa::kAvx512, false);
}

TEST(Gemm, AmxHasTheBitsOfPlainCode) {
  if (!cpu_features().amx) GTEST_SKIP() << "this machine has no AMX";
  expect_bits_of_plain_code(Isa::kAvx512, true);
}

// Segments, L2 groups and row parts of a long product, where plain code would be slow.
TEST(Gemm, AmxHasTheBitsOfAvx512OnLongProducts) {
  if (!cpu_features().amx) GTEST_SKIP() << "this machine has no AMX";
  ThreadPool pool(2);
  const Context vectors{Device::kCpu, &pool, Isa::kAvx512, false};
  const Context tiles{Device::kCpu, &pool, Isa::kAvx512, true};
  const Matrix m(700, 7168, 23);
  const std::vector<bf16> x = random_bf16(24, 600 * 7168, 1.0f);
  expect_same_bits(product(vectors, x, 600, m), product(tiles, x, 600, m), "vectors against tiles");
}

TEST(Gemm, StaysWithinTheBoundOfTheReference) {
  ThreadPool pool(2);
  const Context cpu = make_context(Device::kCpu, &pool);
  const Context reference = make_context(Device::kReference, &pool);
  for (const GemmCase& c : kGemmTestCases) {
    const Matrix m(c.n, c.k, 31);
    const std::vector<bf16> x = random_bf16(32, c.t * c.k, 3.0f);
    std::vector<double> wide(x.size());
    std::transform(x.begin(), x.end(), wide.begin(), [](bf16 v) { return double{to_float(v)}; });
    std::vector<double> want(c.t * c.n);
    gemm(reference, input(wide.data(), {c.t, c.k}), m.reference(), view(want.data(), {c.t, c.n}));
    const std::vector<float> got = product(cpu, x, c.t, m);
    std::vector<bf16> rounded(got.size());
    gemm(cpu, input(x.data(), {c.t, c.k}), m.cpu(), view(rounded.data(), {c.t, c.n}));
    const double roundings = 17 + std::min<int64_t>(c.k / 32 + 1, 56) + c.k / kGemmSegment;
    for (int64_t t = 0; t < c.t; ++t) {
      for (int64_t n = 0; n < c.n; ++n) {
        double magnitude = 0;
        for (int64_t k = 0; k < c.k; ++k) {
          magnitude += std::abs(wide[t * c.k + k] * to_float(m.rows[n * c.k + k]));
        }
        const int64_t i = t * c.n + n;
        ASSERT_TRUE(std::isfinite(got[i]));
        ASSERT_LE(std::abs(got[i] - want[i]), roundings * 0x1p-24 * magnitude + 1e-36);
        ASSERT_EQ(rounded[i].bits, to_bf16(got[i]).bits);
      }
    }
  }
}

TEST(Gemm, InfinityAndNanKeepTheirPlaces) {
  ThreadPool pool(1);
  const Context context = make_context(Device::kCpu, &pool);
  const Matrix m(20, 40, 41);
  std::vector<bf16> x = random_bf16(42, 3 * 40, 1.0f);
  x[7] = to_bf16(INFINITY);
  x[40 + 9].bits = 0xffc5;  // a NaN with a sign and a payload
  const std::vector<float> got = product(context, x, 3, m);
  for (int64_t n = 0; n < 20; ++n) {
    EXPECT_TRUE(std::isinf(got[n]));
    EXPECT_EQ(std::signbit(got[n]), std::signbit(to_float(m.rows[n * 40 + 7])));
    EXPECT_EQ(bits_of(got[20 + n]), 0x7fc00000u);
    EXPECT_TRUE(std::isfinite(got[40 + n]));
  }
}

// The same row alone, in batches, at other places, with row strides, on other thread counts.
TEST(Gemm, ARowsBitsDoNotDependOnItsSurroundings) {
  for (const GemmCase& c : {GemmCase{64, 290, 2000}, GemmCase{64, 33, 95}}) {
    const Matrix m(c.n, c.k, 51);
    const std::vector<bf16> x = random_bf16(52, c.t * c.k, 3.0f);
    ThreadPool one(1);
    const Context alone = make_context(Device::kCpu, &one);
    std::vector<float> want;
    for (int64_t t = 0; t < c.t; ++t) {
      const std::vector<bf16> row(x.begin() + t * c.k, x.begin() + (t + 1) * c.k);
      const std::vector<float> out = product(alone, row, 1, m);
      want.insert(want.end(), out.begin(), out.end());
    }
    for (const int threads : {1, 2, 3}) {
      ThreadPool pool(threads);
      const Context context = make_context(Device::kCpu, &pool);
      for (const int64_t batch : {1, 2, 7, 64}) {
        for (int64_t begin = 0; begin + batch <= c.t; begin += batch == 1 ? 13 : batch) {
          const int64_t stride = c.n + 5;
          std::vector<float> out(batch * stride);
          Tensor to = view(out.data(), {batch, c.n});
          to.row_stride = stride;
          for (int repeat = 0; repeat < (batch == 7 ? 3 : 1); ++repeat) {
            gemm(context, input(x.data(), {c.t, c.k}).slice(begin, batch), m.cpu(), to);
            for (int64_t r = 0; r < batch; ++r) {
              ASSERT_EQ(0, std::memcmp(&out[r * stride], &want[(begin + r) * c.n], c.n * 4))
                  << threads << " threads, batch " << batch << ", row " << begin + r;
            }
          }
        }
      }
    }
  }
}

TEST(Gemm, ColumnsOfAWiderTensorAreRead) {
  ThreadPool pool(2);
  const Context context = make_context(Device::kCpu, &pool);
  const Matrix m(24, 70, 61);
  const std::vector<bf16> wide = random_bf16(62, 20 * 100, 1.0f);
  std::vector<bf16> narrow;
  for (int64_t t = 0; t < 20; ++t) {
    narrow.insert(narrow.end(), wide.begin() + t * 100 + 11, wide.begin() + t * 100 + 81);
  }
  std::vector<float> got(20 * 24);
  gemm(context, input(wide.data(), {20, 100}).columns(11, 70), m.cpu(), view(got.data(), {20, 24}));
  expect_same_bits(got, product(context, narrow, 20, m), "columns against copy");
}

TEST(Gemm, BatchedIsEachItemAlone) {
  for (const int threads : {1, 2, 3}) {
    ThreadPool pool(threads);
    const Context context = make_context(Device::kCpu, &pool);
    std::vector<Matrix> matrices;
    std::vector<std::vector<bf16>> xs;
    std::vector<std::vector<float>> outs;
    std::vector<GemmItem> items;
    const GemmCase cases[] = {{3, 40, 64}, {0, 16, 32},  {20, 17, 1900},
                              {1, 0, 64},  {80, 16, 33}, {1, 300, 31}};
    for (const GemmCase& c : cases) {
      matrices.emplace_back(c.n, c.k, 70 + c.n);
      xs.push_back(random_bf16(80 + c.t, c.t * c.k, 1.0f));
      outs.emplace_back(c.t * c.n);
    }
    for (size_t i = 0; i < std::size(cases); ++i) {
      items.push_back({input(xs[i].data(), {cases[i].t, cases[i].k}), matrices[i].cpu(),
                       view(outs[i].data(), {cases[i].t, cases[i].n})});
    }
    gemm_batched(context, items);
    for (size_t i = 0; i < std::size(cases); ++i) {
      expect_same_bits(outs[i], product(context, xs[i], cases[i].t, matrices[i]), "batched");
    }
  }
}

TEST(GemmDeathTest, WrongShapesAreBugs) {
  ThreadPool pool(1);
  const Context context = make_context(Device::kCpu, &pool);
  const Matrix m(16, 32, 91);
  const std::vector<bf16> x(64);
  std::vector<float> out(32);
  EXPECT_DEATH(gemm(context, input(x.data(), {2, 31}), m.cpu(), view(out.data(), {2, 16})),
               "x of gemm");
  EXPECT_DEATH(gemm(context, input(x.data(), {2, 32}), m.cpu(), view(out.data(), {2, 15})),
               "out of gemm");
}

}  // namespace
}  // namespace perigee::ops
