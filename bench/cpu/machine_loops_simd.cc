#include "bench/cpu/machine_loops.h"
#include "num/simd.h"

namespace perigee::bench {

template <>
int32_t read_all<Isa::PERIGEE_ISA>(const uint8_t* data, int64_t bytes) {
  const auto* p = reinterpret_cast<const int32_t*>(data);
  simd::i32x16 sum[4] = {simd::set1i(0), simd::set1i(0), simd::set1i(0), simd::set1i(0)};
  for (int64_t i = 0; i < bytes / 4; i += 64) {
    for (int j = 0; j < 4; ++j) sum[j] = simd::addi(sum[j], simd::loadi(p + i + 16 * j));
  }
  int32_t lanes[16];
  simd::storei(lanes, simd::addi(simd::addi(sum[0], sum[1]), simd::addi(sum[2], sum[3])));
  int32_t total = 0;
  for (const int32_t lane : lanes) total += lane & 0xffff;
  return total;
}

// Independent chains hide the latency: twelve registers of them, which is six of 16 lanes with AVX2.
template <>
float multiply_adds<Isa::PERIGEE_ISA>(int64_t rounds) {
  constexpr int kChains = 6;
  simd::f32x16 a[kChains];
  simd::f32x16 b[kChains];
  for (int i = 0; i < kChains; ++i) {
    a[i] = simd::set1(1.0f + static_cast<float>(i));
    b[i] = simd::set1(2.0f + static_cast<float>(i));
  }
  const simd::f32x16 x = simd::set1(0.999f);
  const simd::f32x16 y = simd::set1(0.001f);
#if defined(__AVX512F__)
  for (int64_t r = 0; r < rounds; ++r) {
    for (int i = 0; i < kChains; ++i) a[i] = simd::fma(a[i], x, y);
    for (int i = 0; i < kChains; ++i) b[i] = simd::fma(b[i], x, y);
  }
#else
  for (int64_t r = 0; r < rounds; ++r) {
    for (int i = 0; i < kChains; ++i) a[i] = simd::fma(a[i], x, y);
    for (int i = 0; i < kChains; ++i) a[i] = simd::fma(a[i], x, y);
  }
#endif
  for (int i = 0; i < kChains; ++i) a[0] = simd::add(a[0], simd::add(a[i], b[i]));
  return simd::hsum(a[0]);
}

}  // namespace perigee::bench
