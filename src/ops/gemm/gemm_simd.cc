#include "ops/gemm/gemm_simd.h"

#include "num/simd.h"
#include "ops/gemm/gemm_micro.h"

namespace perigee::ops::cpu {

template <>
void gemm_expand<Isa::PERIGEE_ISA>(const bf16* x, int64_t k, int64_t padded, float factor,
                                   float* out) {
  const simd::f32x16 f = simd::set1(factor);
  int64_t i = 0;
  for (; i + 16 <= k; i += 16) simd::store(out + i, simd::mul(simd::load_bf16(x + i), f));
  if (i < k) {
    simd::store_part(out + i, simd::mul(simd::load_bf16_part(x + i, k - i), f), k - i);
    i = k;
  }
  for (; i < padded; ++i) out[i] = 0.0f;
}

template <>
void gemm_segment<Isa::PERIGEE_ISA>(const float* x, int64_t x_stride, int64_t rows,
                                    const uint8_t* w, int64_t blocks, bool first, float* total) {
  micro_segment<false>(x, x_stride, rows, w, blocks, nullptr, first, total);
}

template <>
void gemm_add<Isa::PERIGEE_ISA>(float* total, const float* part, int64_t count) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    simd::store(total + i, simd::add(simd::load(total + i), simd::load(part + i)));
  }
  for (; i < count; ++i) total[i] += part[i];
}

template <>
void gemm_exponents<Isa::PERIGEE_ISA>(const bf16* x, int64_t k, uint16_t* low, uint16_t* high) {
  uint16_t least = *low;
  uint16_t most = *high;
  for (int64_t i = 0; i < k; ++i) {
    const uint16_t e = x[i].bits & 0x7f80;
    const uint16_t counted = e == 0 ? uint16_t{0xffff} : e;
    least = counted < least ? counted : least;
    most = e > most ? e : most;
  }
  *low = least;
  *high = most;
}

template <>
void gemm_store<Isa::PERIGEE_ISA>(const GemmResult& x) {
  const simd::f32x16 quiet = simd::from_bits(simd::set1i(0x7fc00000));
  for (int64_t r = 0; r < x.rows; ++r) {
    const float* from = x.from + r * 16;
    uint8_t* const out = static_cast<uint8_t*>(x.out) + r * x.row_bytes;
    for (int64_t c = 0; c < x.columns; c += 16, from += x.panel_stride) {
      const simd::f32x16 value = simd::load(from);
      const simd::f32x16 result = simd::select(simd::is_nan(value), quiet, value);
      if (x.to_f32) {
        simd::store_part(reinterpret_cast<float*>(out) + c, result, x.columns - c);
      } else {
        simd::store_bf16_part(reinterpret_cast<bf16*>(out) + c, result, x.columns - c);
      }
    }
  }
}

}  // namespace perigee::ops::cpu
