#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/cpu.h"
#include "base/rng.h"
#include "base/thread_pool.h"
#include "num/simd_test_cases.h"

namespace perigee {
namespace {

uint32_t bits_of(float x) {
  uint32_t u;
  std::memcpy(&u, &x, sizeof(u));
  return u;
}

// Random bit patterns, ordinary magnitudes and every special value.
std::vector<float> inputs(uint64_t seed, size_t n) {
  const float special[] = {0.0f, -0.0f, 1.0f, -1.0f, INFINITY, -INFINITY, NAN, 88.7f, 88.73f, -87.3f, -87.4f,
                           1e-38f, -1e-38f, 0.625f, -0.625f, 3.4e38f, 65504.0f, 1.5f};
  std::vector<float> out(n);
  for (size_t i = 0; i < n; ++i) {
    const uint64_t r = random_bits(seed, i);
    if (i % 4 == 0) {
      const uint32_t u = static_cast<uint32_t>(r);
      std::memcpy(&out[i], &u, sizeof(u));
    } else if (i % 4 == 1) {
      out[i] = special[r % std::size(special)];
    } else {
      out[i] = (random_uniform(seed + 7, i) - 0.5f) * (i % 4 == 2 ? 4.0f : 180.0f);
    }
  }
  return out;
}

using Apply = void (*)(const float*, const float*, const float*, float[kSimdFunctions][16]);

void expect_same(Apply x, Apply y) {
  const size_t n = 16 * 2000;
  const std::vector<float> a = inputs(1, n);
  const std::vector<float> b = inputs(2, n);
  const std::vector<float> c = inputs(3, n);
  FlushDenormals flush;
  for (size_t i = 0; i < n; i += 16) {
    float p[kSimdFunctions][16];
    float q[kSimdFunctions][16];
    x(&a[i], &b[i], &c[i], p);
    y(&a[i], &b[i], &c[i], q);
    for (int f = 0; f < kSimdFunctions; ++f) {
      for (int l = 0; l < 16; ++l) {
        const bool both_nan = std::isnan(p[f][l]) && std::isnan(q[f][l]);
        ASSERT_TRUE(both_nan || bits_of(p[f][l]) == bits_of(q[f][l]))
            << "function " << f << " of " << a[i + l] << ", " << b[i + l] << ", " << c[i + l] << ": "
            << p[f][l] << " against " << q[f][l];
      }
    }
  }
}

TEST(Simd, Avx2HasTheBitsOfPlainCode) {
  if (!cpu_features().avx2) GTEST_SKIP() << "this machine has no AVX2";
  expect_same(simd_apply<Isa::kGeneric>, simd_apply<Isa::kAvx2>);
}

TEST(Simd, Avx512HasTheBitsOfPlainCode) {
  if (!cpu_features().avx512) GTEST_SKIP() << "this machine has no AVX-512";
  expect_same(simd_apply<Isa::kGeneric>, simd_apply<Isa::kAvx512>);
}

double relative_error(float got, double want) {
  if (std::isinf(want) && std::isinf(got)) return 0;
  return std::abs(got - want) / std::max(std::abs(want), 1e-37);
}

TEST(Simd, ElementaryFunctionsAreWithinTwoUlp) {
  const float zeros[16] = {};
  double worst[4] = {};
  for (int i = 0; i < 20000; ++i) {
    float x[16];
    float out[kSimdFunctions][16];
    for (int l = 0; l < 16; ++l) x[l] = (random_uniform(9, i * 16 + l) - 0.5f) * 170.0f;
    if (i % 2 == 0) {
      for (float& v : x) v *= 0.02f;
    }
    simd_apply<Isa::kGeneric>(x, zeros, zeros, out);
    for (int l = 0; l < 16; ++l) {
      const double d = x[l];
      worst[0] = std::max(worst[0], relative_error(out[6][l], std::exp(d)));
      if (d > 0) {
        const double slack = std::abs(std::log(d)) < 1e-3 ? 1e-3 : std::abs(std::log(d));
        worst[1] = std::max(worst[1], std::abs(out[7][l] - std::log(d)) / slack);
      }
      worst[2] = std::max(worst[2], relative_error(out[8][l], std::tanh(d)));
      worst[3] = std::max(worst[3], relative_error(out[9][l], 1 / (1 + std::exp(-d))));
    }
  }
  const double ulp = std::numeric_limits<float>::epsilon();
  EXPECT_LT(worst[0], 1.5 * ulp);
  EXPECT_LT(worst[1], 2 * ulp);
  EXPECT_LT(worst[2], 2 * ulp);
  EXPECT_LT(worst[3], 3 * ulp);
}

TEST(Simd, HorizontalSumIsAFixedTree) {
  float a[16] = {};
  float b[16];
  for (int i = 0; i < 16; ++i) b[i] = std::ldexp(1.0f, i);
  float out[kSimdFunctions][16];
  simd_apply<Isa::kGeneric>(a, b, a, out);
  EXPECT_EQ(out[12][0], 65535.0f);
  EXPECT_EQ(out[12][1], 0.0f);
}

}  // namespace
}  // namespace perigee
