// What    Vector kernels of MXFP4 panels on raw pointers, compiled once per instruction set.
// Owner   ops/moe_gemm.
// Threads Pure functions; denormals must be flushed by the caller (ThreadPool does).
// Errors  None.
//
// Codes are decoded as their value times 2^25 (an integer in the top byte of a lane, converted), and activations are
// expanded times 2^-25, so that every product is the code's own.
#pragma once

#include <cstdint>

#include "num/isa.h"

namespace perigee::ops::cpu {

constexpr float kMoeFactor = 0x1p-25f;

// `rows` (1 to 4) rows times one panel over one segment, decoding in registers; totals as in gemm_segment.
template <Isa>
void moe_stream(const float* x, int64_t x_stride, int64_t rows, const uint8_t* codes,
                const uint8_t* scales, int64_t blocks, bool first, float* totals);

// Decodes blocks into BF16 pairs (the layout of kTiledBf16): dequantised values, or codes times 2^25 with the blocks'
// scales apart in factors[blocks][16].
template <Isa>
void moe_unpack(const uint8_t* codes, const uint8_t* scales, int64_t blocks, bool dequantise,
                uint8_t* pairs, float* factors);

// gemm_segment on unpacked codes with their factors.
template <Isa>
void moe_scaled(const float* x, int64_t x_stride, int64_t rows, const uint8_t* pairs,
                int64_t blocks, const float* factors, bool first, float* totals);

template <>
void moe_stream<Isa::kGeneric>(const float*, int64_t, int64_t, const uint8_t*, const uint8_t*,
                               int64_t, bool, float*);
template <>
void moe_unpack<Isa::kGeneric>(const uint8_t*, const uint8_t*, int64_t, bool, uint8_t*, float*);
template <>
void moe_scaled<Isa::kGeneric>(const float*, int64_t, int64_t, const uint8_t*, int64_t,
                               const float*, bool, float*);

template <>
void moe_stream<Isa::kAvx2>(const float*, int64_t, int64_t, const uint8_t*, const uint8_t*, int64_t,
                            bool, float*);
template <>
void moe_unpack<Isa::kAvx2>(const uint8_t*, const uint8_t*, int64_t, bool, uint8_t*, float*);
template <>
void moe_scaled<Isa::kAvx2>(const float*, int64_t, int64_t, const uint8_t*, int64_t, const float*,
                            bool, float*);

template <>
void moe_stream<Isa::kAvx512>(const float*, int64_t, int64_t, const uint8_t*, const uint8_t*,
                              int64_t, bool, float*);
template <>
void moe_unpack<Isa::kAvx512>(const uint8_t*, const uint8_t*, int64_t, bool, uint8_t*, float*);
template <>
void moe_scaled<Isa::kAvx512>(const float*, int64_t, int64_t, const uint8_t*, int64_t, const float*,
                              bool, float*);

}  // namespace perigee::ops::cpu
