#include "model/dummy.h"

#include <cmath>
#include <cstring>

#include "base/rng.h"
#include "num/records.h"

namespace perigee::model {
namespace {

constexpr float kBellScale =
    1.0f / (65536.0f * 0.57735027f);      // four uniform numbers of 16 bits: variance 4/12
constexpr double kCodeDeviation = 2.926;  // root mean square of 0, 0.5, 1, 1.5, 2, 3, 4, 6
constexpr double kScaleDeviation = 0.79;  // of a scale that is halved every second time

// Mean 0, deviation 1, within +-3.47.
float bell(uint64_t key, int64_t i) {
  const uint64_t h = random_bits(key, static_cast<uint64_t>(i));
  const int32_t sum =
      static_cast<int32_t>((h & 0xffff) + (h >> 16 & 0xffff) + (h >> 32 & 0xffff) + (h >> 48));
  return static_cast<float>(sum - 131070) * kBellScale;
}

float uniform(uint64_t key, int64_t i) {
  return random_uniform(key, static_cast<uint64_t>(i));
}

// The power of two nearest to x, as its exponent.
int nearest_exponent(double x) {
  int exponent = 0;
  const double mantissa = std::frexp(x, &exponent);
  return mantissa > 0.70710678 ? exponent : exponent - 1;
}

}  // namespace

void fill_dummy(const TensorRow& row, uint64_t key, int64_t begin, std::span<float> out) {
  const int64_t n = static_cast<int64_t>(out.size());
  const auto each = [&](auto&& value) {
    for (int64_t i = 0; i < n; ++i) out[static_cast<size_t>(i)] = value(begin + i);
  };
  const float scale =
      static_cast<float>(row.gain / std::sqrt(static_cast<double>(std::max<int64_t>(row.k, 1))));
  switch (row.fill) {
    case Fill::kLinear:
      return each([&](int64_t i) { return bell(key, i) * scale; });
    case Fill::kEmbedding:
      return each([&](int64_t i) { return bell(key, i) * 0.8f; });
    case Fill::kNorm:
      return each([&](int64_t i) { return 1.0f + bell(key, i) * 0.1f; });
    case Fill::kBias:
      return each([&](int64_t i) { return bell(key, i) * 0.1f; });
    case Fill::kALog:
      return each([&](int64_t i) { return bell(key, i) * 0.5f; });
    // Mostly slow decay, as in a trained model: both gate functions forget little for inputs below zero.
    case Fill::kDtBias:
      return each([&](int64_t i) { return -6.0f + 5.0f * uniform(key, i); });
    case Fill::kConv:
      return each([&](int64_t i) { return bell(key, i) * 0.5f; });
  }
}

void fill_dummy_codes(uint64_t key, int64_t begin, std::span<uint8_t> out) {
  for (size_t i = 0; i < out.size(); i += 8) {
    const uint64_t h = random_bits(key, (static_cast<uint64_t>(begin) + i) / 8);
    std::memcpy(out.data() + i, &h, std::min<size_t>(8, out.size() - i));
  }
}

void fill_dummy_scales(const TensorRow& row, uint64_t key, int64_t begin, std::span<uint8_t> out) {
  const double k = static_cast<double>(row.dims.back() * kMxfp4Group);
  const int byte =
      127 + nearest_exponent(row.gain / (std::sqrt(k) * kCodeDeviation * kScaleDeviation));
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<uint8_t>(
        byte - static_cast<int>(random_bits(key, static_cast<uint64_t>(begin) + i) & 1));
  }
}

}  // namespace perigee::model
