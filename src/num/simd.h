// What    Sixteen FP32 lanes with the same arithmetic on every instruction set: element-wise IEEE operations, explicit
//         fused multiply-adds, one fixed tree for horizontal sums and polynomial exp, log, tanh and sigmoid.
// Owner   num. Included only by files that cmake compiles once per set (PERIGEE_ISA); those include num/ alone.
// Threads Pure functions.
// Errors  None. max and min return the second operand when a lane compares false (NaN included).
// Source  exp, log, tanh: the single-precision range reductions and coefficients published in the Cephes library (Moshier).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "num/bf16.h"
#include "num/isa.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define PERIGEE_INLINE inline __attribute__((always_inline))

// Everything is in an unnamed namespace: the three compilations must never share a function through the linker.
namespace perigee::simd {
namespace {

#if defined(__AVX512F__)

struct f32x16 {
  __m512 v;
};
struct i32x16 {
  __m512i v;
};
struct mask16 {
  __mmask16 v;
};

PERIGEE_INLINE f32x16 set1(float x) { return {_mm512_set1_ps(x)}; }
PERIGEE_INLINE i32x16 set1i(int32_t x) { return {_mm512_set1_epi32(x)}; }
PERIGEE_INLINE f32x16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
PERIGEE_INLINE void store(float* p, f32x16 a) { _mm512_storeu_ps(p, a.v); }
PERIGEE_INLINE i32x16 loadi(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
PERIGEE_INLINE void storei(int32_t* p, i32x16 a) { _mm512_storeu_si512(p, a.v); }
PERIGEE_INLINE f32x16 add(f32x16 a, f32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
PERIGEE_INLINE f32x16 sub(f32x16 a, f32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
PERIGEE_INLINE f32x16 mul(f32x16 a, f32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
PERIGEE_INLINE f32x16 div(f32x16 a, f32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
PERIGEE_INLINE f32x16 sqrt(f32x16 a) { return {_mm512_sqrt_ps(a.v)}; }
PERIGEE_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
PERIGEE_INLINE f32x16 max(f32x16 a, f32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }
PERIGEE_INLINE f32x16 min(f32x16 a, f32x16 b) { return {_mm512_min_ps(a.v, b.v)}; }
PERIGEE_INLINE f32x16 round_even(f32x16 a) { return {_mm512_roundscale_ps(a.v, 0)}; }
PERIGEE_INLINE i32x16 to_int(f32x16 a) { return {_mm512_cvtps_epi32(a.v)}; }
PERIGEE_INLINE f32x16 to_float(i32x16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
PERIGEE_INLINE i32x16 bits(f32x16 a) { return {_mm512_castps_si512(a.v)}; }
PERIGEE_INLINE f32x16 from_bits(i32x16 a) { return {_mm512_castsi512_ps(a.v)}; }
PERIGEE_INLINE i32x16 addi(i32x16 a, i32x16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
PERIGEE_INLINE i32x16 subi(i32x16 a, i32x16 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
PERIGEE_INLINE i32x16 andi(i32x16 a, i32x16 b) { return {_mm512_and_si512(a.v, b.v)}; }
PERIGEE_INLINE i32x16 ori(i32x16 a, i32x16 b) { return {_mm512_or_si512(a.v, b.v)}; }
template <int N>
PERIGEE_INLINE i32x16 shl(i32x16 a) { return {_mm512_slli_epi32(a.v, N)}; }
template <int N>
PERIGEE_INLINE i32x16 shr(i32x16 a) { return {_mm512_srli_epi32(a.v, N)}; }
PERIGEE_INLINE mask16 less(f32x16 a, f32x16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
PERIGEE_INLINE mask16 is_nan(f32x16 a) { return {_mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q)}; }
PERIGEE_INLINE f32x16 select(mask16 m, f32x16 a, f32x16 b) { return {_mm512_mask_blend_ps(m.v, b.v, a.v)}; }
PERIGEE_INLINE f32x16 load_bf16(const bf16* p) {
  const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16))};
}
PERIGEE_INLINE void store_bf16(bf16* p, f32x16 a) {
  const __m512i u = _mm512_castps_si512(a.v);
  const __m512i lsb = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  const __m512i r = _mm512_add_epi32(u, _mm512_add_epi32(lsb, _mm512_set1_epi32(0x7fff)));
  const __m512i nan = _mm512_or_si512(u, _mm512_set1_epi32(0x400000));
  const __m512i out = _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q), r, nan);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtepi32_epi16(_mm512_srli_epi32(out, 16)));
}
// Bytes p[0..15] as integers 0..255.
PERIGEE_INLINE i32x16 load_u8(const uint8_t* p) {
  return {_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
PERIGEE_INLINE float hsum(f32x16 a) {
  const __m256 s8 = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_add_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
}
PERIGEE_INLINE float hmax(f32x16 a) {
  const __m256 s8 = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 s4 = _mm_max_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_max_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_max_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
}

#elif defined(__AVX2__)

struct f32x16 {
  __m256 lo, hi;
};
struct i32x16 {
  __m256i lo, hi;
};
struct mask16 {
  __m256 lo, hi;
};

PERIGEE_INLINE f32x16 set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
PERIGEE_INLINE i32x16 set1i(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
PERIGEE_INLINE f32x16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
PERIGEE_INLINE void store(float* p, f32x16 a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
PERIGEE_INLINE i32x16 loadi(const int32_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
}
PERIGEE_INLINE void storei(int32_t* p, i32x16 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.lo);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), a.hi);
}
PERIGEE_INLINE f32x16 add(f32x16 a, f32x16 b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
PERIGEE_INLINE f32x16 sub(f32x16 a, f32x16 b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
PERIGEE_INLINE f32x16 mul(f32x16 a, f32x16 b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
PERIGEE_INLINE f32x16 div(f32x16 a, f32x16 b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
PERIGEE_INLINE f32x16 sqrt(f32x16 a) { return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }
PERIGEE_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
PERIGEE_INLINE f32x16 max(f32x16 a, f32x16 b) {
  return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
PERIGEE_INLINE f32x16 min(f32x16 a, f32x16 b) {
  return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}
PERIGEE_INLINE f32x16 round_even(f32x16 a) {
  return {_mm256_round_ps(a.lo, 0), _mm256_round_ps(a.hi, 0)};
}
PERIGEE_INLINE i32x16 to_int(f32x16 a) {
  return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)};
}
PERIGEE_INLINE f32x16 to_float(i32x16 a) {
  return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)};
}
PERIGEE_INLINE i32x16 bits(f32x16 a) {
  return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)};
}
PERIGEE_INLINE f32x16 from_bits(i32x16 a) {
  return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)};
}
PERIGEE_INLINE i32x16 addi(i32x16 a, i32x16 b) {
  return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
PERIGEE_INLINE i32x16 subi(i32x16 a, i32x16 b) {
  return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)};
}
PERIGEE_INLINE i32x16 andi(i32x16 a, i32x16 b) {
  return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
}
PERIGEE_INLINE i32x16 ori(i32x16 a, i32x16 b) {
  return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
}
template <int N>
PERIGEE_INLINE i32x16 shl(i32x16 a) {
  return {_mm256_slli_epi32(a.lo, N), _mm256_slli_epi32(a.hi, N)};
}
template <int N>
PERIGEE_INLINE i32x16 shr(i32x16 a) {
  return {_mm256_srli_epi32(a.lo, N), _mm256_srli_epi32(a.hi, N)};
}
PERIGEE_INLINE mask16 less(f32x16 a, f32x16 b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)};
}
PERIGEE_INLINE mask16 is_nan(f32x16 a) {
  return {_mm256_cmp_ps(a.lo, a.lo, _CMP_UNORD_Q), _mm256_cmp_ps(a.hi, a.hi, _CMP_UNORD_Q)};
}
PERIGEE_INLINE f32x16 select(mask16 m, f32x16 a, f32x16 b) {
  return {_mm256_blendv_ps(b.lo, a.lo, m.lo), _mm256_blendv_ps(b.hi, a.hi, m.hi)};
}
PERIGEE_INLINE f32x16 load_bf16(const bf16* p) {
  const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(a), 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(b), 16))};
}
PERIGEE_INLINE __m256i round_half_to_bf16(__m256 a) {
  const __m256i u = _mm256_castps_si256(a);
  const __m256i lsb = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const __m256i r = _mm256_add_epi32(u, _mm256_add_epi32(lsb, _mm256_set1_epi32(0x7fff)));
  const __m256i nan = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
  const __m256i is = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
  return _mm256_srli_epi32(_mm256_blendv_epi8(r, nan, is), 16);
}
PERIGEE_INLINE void store_bf16(bf16* p, f32x16 a) {
  const __m256i packed =
      _mm256_packus_epi32(round_half_to_bf16(a.lo), round_half_to_bf16(a.hi));  // lanes 0 2 1 3
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
}
PERIGEE_INLINE i32x16 load_u8(const uint8_t* p) {
  const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepu8_epi32(b), _mm256_cvtepu8_epi32(_mm_srli_si128(b, 8))};
}
PERIGEE_INLINE float hsum(f32x16 a) {
  const __m256 s8 = _mm256_add_ps(a.lo, a.hi);
  const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_add_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
}
PERIGEE_INLINE float hmax(f32x16 a) {
  const __m256 s8 = _mm256_max_ps(a.lo, a.hi);
  const __m128 s4 = _mm_max_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_max_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_max_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
}

#else  // plain C++: one loop a function; fma is the correctly rounded library function

struct f32x16 {
  float v[16];
};
struct i32x16 {
  int32_t v[16];
};
struct mask16 {
  bool v[16];
};

template <class F>
PERIGEE_INLINE f32x16 each(F f) {
  f32x16 r;
  for (int i = 0; i < 16; ++i) r.v[i] = f(i);
  return r;
}
template <class F>
PERIGEE_INLINE i32x16 each_int(F f) {
  i32x16 r;
  for (int i = 0; i < 16; ++i) r.v[i] = f(i);
  return r;
}
PERIGEE_INLINE int32_t as_int(float x) {
  int32_t u;
  std::memcpy(&u, &x, sizeof(u));
  return u;
}
PERIGEE_INLINE float as_float(int32_t u) {
  float x;
  std::memcpy(&x, &u, sizeof(x));
  return x;
}
PERIGEE_INLINE int32_t wrap(uint32_t x) { return static_cast<int32_t>(x); }

PERIGEE_INLINE f32x16 set1(float x) { return each([&](int) { return x; }); }
PERIGEE_INLINE i32x16 set1i(int32_t x) { return each_int([&](int) { return x; }); }
PERIGEE_INLINE f32x16 load(const float* p) { return each([&](int i) { return p[i]; }); }
PERIGEE_INLINE void store(float* p, f32x16 a) { std::memcpy(p, a.v, sizeof(a.v)); }
PERIGEE_INLINE i32x16 loadi(const int32_t* p) { return each_int([&](int i) { return p[i]; }); }
PERIGEE_INLINE void storei(int32_t* p, i32x16 a) { std::memcpy(p, a.v, sizeof(a.v)); }
PERIGEE_INLINE f32x16 add(f32x16 a, f32x16 b) { return each([&](int i) { return a.v[i] + b.v[i]; }); }
PERIGEE_INLINE f32x16 sub(f32x16 a, f32x16 b) { return each([&](int i) { return a.v[i] - b.v[i]; }); }
PERIGEE_INLINE f32x16 mul(f32x16 a, f32x16 b) { return each([&](int i) { return a.v[i] * b.v[i]; }); }
PERIGEE_INLINE f32x16 div(f32x16 a, f32x16 b) { return each([&](int i) { return a.v[i] / b.v[i]; }); }
PERIGEE_INLINE f32x16 sqrt(f32x16 a) { return each([&](int i) { return std::sqrt(a.v[i]); }); }
PERIGEE_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
  return each([&](int i) { return std::fma(a.v[i], b.v[i], c.v[i]); });
}
// The vector instructions give zeros for denormals, also where nothing is computed; a compiled selection need not.
PERIGEE_INLINE float flushed(float x) {
  const int32_t u = as_int(x);
  return (u & 0x7f800000) == 0 ? as_float(u & INT32_MIN) : x;
}
PERIGEE_INLINE f32x16 max(f32x16 a, f32x16 b) {
  return each([&](int i) { return flushed(a.v[i] > b.v[i] ? a.v[i] : b.v[i]); });
}
PERIGEE_INLINE f32x16 min(f32x16 a, f32x16 b) {
  return each([&](int i) { return flushed(a.v[i] < b.v[i] ? a.v[i] : b.v[i]); });
}
PERIGEE_INLINE f32x16 round_even(f32x16 a) {
  return each([&](int i) { return std::nearbyint(a.v[i]); });
}
PERIGEE_INLINE i32x16 to_int(f32x16 a) {
  return each_int([&](int i) {
    const bool fits = a.v[i] >= -2147483648.0f && a.v[i] < 2147483648.0f;
    return fits ? static_cast<int32_t>(std::nearbyint(a.v[i])) : INT32_MIN;  // as the x86 instruction
  });
}
PERIGEE_INLINE f32x16 to_float(i32x16 a) {
  return each([&](int i) { return static_cast<float>(a.v[i]); });
}
PERIGEE_INLINE i32x16 bits(f32x16 a) { return each_int([&](int i) { return as_int(a.v[i]); }); }
PERIGEE_INLINE f32x16 from_bits(i32x16 a) { return each([&](int i) { return as_float(a.v[i]); }); }
PERIGEE_INLINE i32x16 addi(i32x16 a, i32x16 b) {
  return each_int([&](int i) { return wrap(uint32_t(a.v[i]) + uint32_t(b.v[i])); });
}
PERIGEE_INLINE i32x16 subi(i32x16 a, i32x16 b) {
  return each_int([&](int i) { return wrap(uint32_t(a.v[i]) - uint32_t(b.v[i])); });
}
PERIGEE_INLINE i32x16 andi(i32x16 a, i32x16 b) {
  return each_int([&](int i) { return a.v[i] & b.v[i]; });
}
PERIGEE_INLINE i32x16 ori(i32x16 a, i32x16 b) {
  return each_int([&](int i) { return a.v[i] | b.v[i]; });
}
template <int N>
PERIGEE_INLINE i32x16 shl(i32x16 a) {
  return each_int([&](int i) { return wrap(uint32_t(a.v[i]) << N); });
}
template <int N>
PERIGEE_INLINE i32x16 shr(i32x16 a) {
  return each_int([&](int i) { return wrap(uint32_t(a.v[i]) >> N); });
}
PERIGEE_INLINE mask16 less(f32x16 a, f32x16 b) {
  mask16 r;
  for (int i = 0; i < 16; ++i) r.v[i] = a.v[i] < b.v[i];
  return r;
}
PERIGEE_INLINE mask16 is_nan(f32x16 a) {
  mask16 r;
  for (int i = 0; i < 16; ++i) r.v[i] = a.v[i] != a.v[i];
  return r;
}
PERIGEE_INLINE f32x16 select(mask16 m, f32x16 a, f32x16 b) {
  return each([&](int i) { return m.v[i] ? a.v[i] : b.v[i]; });
}
PERIGEE_INLINE f32x16 load_bf16(const bf16* p) {
  return each([&](int i) { return as_float(wrap(uint32_t(p[i].bits) << 16)); });
}
PERIGEE_INLINE void store_bf16(bf16* p, f32x16 a) {
  for (int i = 0; i < 16; ++i) {
    uint32_t u = static_cast<uint32_t>(as_int(a.v[i]));
    u = a.v[i] != a.v[i] ? u | 0x400000u : u + 0x7fffu + ((u >> 16) & 1u);
    p[i].bits = static_cast<uint16_t>(u >> 16);
  }
}
PERIGEE_INLINE i32x16 load_u8(const uint8_t* p) {
  return each_int([&](int i) { return static_cast<int32_t>(p[i]); });
}
PERIGEE_INLINE float hsum(f32x16 a) {
  for (int width = 8; width >= 1; width /= 2) {
    for (int i = 0; i < width; ++i) a.v[i] = a.v[i] + a.v[i + width];
  }
  return a.v[0];
}
PERIGEE_INLINE float hmax(f32x16 a) {
  for (int width = 8; width >= 1; width /= 2) {
    for (int i = 0; i < width; ++i) a.v[i] = a.v[i] > a.v[i + width] ? a.v[i] : a.v[i + width];
  }
  return a.v[0];
}

#endif

PERIGEE_INLINE f32x16 zero() { return set1(0.0f); }

// The first n of 16 lanes (0 <= n <= 16); the others are zero and their memory is not touched.
PERIGEE_INLINE f32x16 load_part(const float* p, int64_t n) {
  if (n >= 16) return load(p);
  alignas(64) float buffer[16] = {};
  for (int64_t i = 0; i < n; ++i) buffer[i] = p[i];
  return load(buffer);
}
PERIGEE_INLINE void store_part(float* p, f32x16 a, int64_t n) {
  if (n >= 16) return store(p, a);
  alignas(64) float buffer[16];
  store(buffer, a);
  for (int64_t i = 0; i < n; ++i) p[i] = buffer[i];
}
PERIGEE_INLINE f32x16 load_bf16_part(const bf16* p, int64_t n) {
  if (n >= 16) return load_bf16(p);
  bf16 buffer[16] = {};
  for (int64_t i = 0; i < n; ++i) buffer[i] = p[i];
  return load_bf16(buffer);
}
PERIGEE_INLINE void store_bf16_part(bf16* p, f32x16 a, int64_t n) {
  if (n >= 16) return store_bf16(p, a);
  bf16 buffer[16];
  store_bf16(buffer, a);
  for (int64_t i = 0; i < n; ++i) p[i] = buffer[i];
}

PERIGEE_INLINE f32x16 neg(f32x16 a) { return sub(zero(), a); }
PERIGEE_INLINE f32x16 abs(f32x16 a) { return from_bits(andi(bits(a), set1i(0x7fffffff))); }

// 2^n for integers n in [-126, 127] held in lanes.
PERIGEE_INLINE f32x16 exp2_int(i32x16 n) { return from_bits(shl<23>(addi(n, set1i(127)))); }

// e^x within 1.5 ulp on [-87, 88]; 0 below -87.33 (results under the smallest normal are flushed), +inf above 88.73; NaN stays.
PERIGEE_INLINE f32x16 exp(f32x16 x) {
  const f32x16 lowest = set1(-87.33654f);
  const f32x16 highest = set1(88.72283f);
  const f32x16 c = max(min(x, highest), lowest);
  const f32x16 n = round_even(mul(c, set1(1.44269504f)));
  f32x16 r = fma(n, set1(-0.693359375f), c);           // ln 2, first 9 bits: exact product
  r = fma(n, set1(2.12194440e-4f), r);                 // the rest of ln 2, negated
  f32x16 p = set1(1.9875691500e-4f);
  p = fma(p, r, set1(1.3981999507e-3f));
  p = fma(p, r, set1(8.3334519073e-3f));
  p = fma(p, r, set1(4.1665795894e-2f));
  p = fma(p, r, set1(1.6666665459e-1f));
  p = fma(p, r, set1(5.0000001201e-1f));
  p = fma(p, mul(r, r), add(r, set1(1.0f)));
  // Two factors, since n reaches 128.
  const i32x16 whole = to_int(n);
  const i32x16 half = subi(shr<1>(addi(whole, set1i(256))), set1i(128));
  f32x16 y = mul(mul(p, exp2_int(half)), exp2_int(subi(whole, half)));
  y = select(less(x, lowest), zero(), y);
  y = select(less(highest, x), set1(INFINITY), y);
  return select(is_nan(x), x, y);
}

// 1 / (1 + e^-x), relative error a few ulp on both sides.
PERIGEE_INLINE f32x16 sigmoid(f32x16 x) {
  return div(set1(1.0f), add(set1(1.0f), exp(neg(x))));
}

// tanh x: an odd polynomial below 0.625, 1 - 2 / (e^2|x| + 1) above.
PERIGEE_INLINE f32x16 tanh(f32x16 x) {
  const f32x16 a = abs(x);
  const f32x16 s = mul(x, x);
  f32x16 p = set1(-5.70498872745e-3f);
  p = fma(p, s, set1(2.06390887954e-2f));
  p = fma(p, s, set1(-5.37397155531e-2f));
  p = fma(p, s, set1(1.33314422036e-1f));
  p = fma(p, s, set1(-3.33332819422e-1f));
  const f32x16 small = fma(mul(p, s), x, x);
  const f32x16 big = sub(set1(1.0f), div(set1(2.0f), add(exp(add(a, a)), set1(1.0f))));
  const f32x16 sign = from_bits(andi(bits(x), set1i(INT32_MIN)));
  const f32x16 large = from_bits(ori(bits(big), bits(sign)));
  return select(less(a, set1(0.625f)), small, large);
}

// ln x for normal positive x; -inf at 0; NaN below 0.
PERIGEE_INLINE f32x16 log(f32x16 x) {
  const i32x16 u = bits(x);
  // Centre the mantissa on [sqrt(1/2), sqrt 2).
  const i32x16 shifted = addi(u, set1i(0x3f800000 - 0x3f3504f3));
  const i32x16 e = subi(shr<23>(shifted), set1i(127));
  const f32x16 m = from_bits(addi(andi(shifted, set1i(0x007fffff)), set1i(0x3f3504f3)));
  const f32x16 f = sub(m, set1(1.0f));
  f32x16 p = set1(7.0376836292e-2f);
  p = fma(p, f, set1(-1.1514610310e-1f));
  p = fma(p, f, set1(1.1676998740e-1f));
  p = fma(p, f, set1(-1.2420140846e-1f));
  p = fma(p, f, set1(1.4249322787e-1f));
  p = fma(p, f, set1(-1.6668057665e-1f));
  p = fma(p, f, set1(2.0000714765e-1f));
  p = fma(p, f, set1(-2.4999993993e-1f));
  p = fma(p, f, set1(3.3333331174e-1f));
  const f32x16 z = mul(f, f);
  const f32x16 n = to_float(e);
  f32x16 y = mul(mul(f, z), p);
  y = fma(n, set1(-2.12194440e-4f), y);
  y = fma(z, set1(-0.5f), y);
  y = add(f, y);
  y = fma(n, set1(0.693359375f), y);
  y = select(less(zero(), x), y, set1(-INFINITY));
  y = select(less(x, zero()), set1(NAN), y);
  y = select(is_nan(x), x, y);
  return select(less(set1(3.4028234e38f), x), x, y);
}

}  // namespace
}  // namespace perigee::simd
