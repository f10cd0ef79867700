// What    Shapes and data that the tests and the bench of the dense product share.
// Owner   ops/gemm.
// Threads Pure functions.
// Errors  None.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/rng.h"
#include "num/bf16.h"
#include "tensor/tensor.h"

namespace perigee::ops {

struct GemmCase {
  int64_t t;
  int64_t n;
  int64_t k;
};

// Small and odd: every tail of rows, panels, blocks and segments.
inline constexpr GemmCase kGemmTestCases[] = {
    {1, 1, 1},      {1, 16, 32},    {2, 17, 33},   {3, 48, 64},    {4, 5, 1792},   {5, 31, 1793},
    {6, 100, 100},  {7, 64, 3585},  {8, 33, 95},   {9, 16, 4000},  {12, 1, 31},    {13, 130, 257},
    {16, 256, 448}, {17, 272, 480}, {33, 40, 500}, {48, 290, 130}, {70, 65, 1850},
};

// Kimi K3 projections: fused KDA input, latent down, query up, square.
inline constexpr std::array<std::array<int64_t, 2>, 4> kGemmBenchShapes = {
    {{6288, 7168}, {3584, 7168}, {7168, 1536}, {2048, 2048}}};
inline constexpr int64_t kGemmBenchRows[] = {1, 4, 16, 64, 512};

// A view of data that an operation only reads.
template <class T>
tensor::Tensor input(const T* data, std::initializer_list<int64_t> dims) {
  return tensor::view(const_cast<T*>(data), dims);
}

enum class Values { kPlain, kTiny, kSpecial };

// Uniform in (-scale, scale); kTiny mixes in magnitudes around the smallest normal number, kSpecial
// infinities and NaN.
inline std::vector<bf16> random_bf16(uint64_t seed, int64_t count, float scale,
                                     Values values = Values::kPlain) {
  std::vector<bf16> out(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const auto c = static_cast<uint64_t>(i);
    out[i] = to_bf16((random_uniform(seed, c) - 0.5f) * 2.0f * scale);
    const uint64_t draw = random_bits(seed + 1, c);
    if (values == Values::kTiny) out[i].bits = draw & 0x80ff;  // up to 2^-126 and its denormals
    if (values == Values::kSpecial && draw % 97 == 0) {
      constexpr uint16_t kSpecials[] = {0x7f80, 0xff80, 0x7fc1, 0x0001, 0x8000, 0x7f7f};
      out[i].bits = kSpecials[draw / 97 % 6];
    }
  }
  return out;
}

}  // namespace perigee::ops
