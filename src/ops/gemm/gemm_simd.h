// What    Vector kernels of the dense product on raw pointers, compiled once per instruction set.
// Owner   ops/gemm.
// Threads Pure functions; denormals must be flushed by the caller (ThreadPool does).
// Errors  None.
#pragma once

#include <cstdint>

#include "num/bf16.h"
#include "num/isa.h"

namespace perigee::ops::cpu {

// Expands k BF16 values to FP32 times `factor`, then zeros up to `padded`.
template <Isa>
void gemm_expand(const bf16* x, int64_t k, int64_t padded, float factor, float* out);

// `rows` rows times one panel over one segment of `blocks` blocks: total[row][16] = sum, or += sum
// unless first.
template <Isa>
void gemm_segment(const float* x, int64_t x_stride, int64_t rows, const uint8_t* w, int64_t blocks,
                  bool first, float* total);

// total[i] += part[i].
template <Isa>
void gemm_add(float* total, const float* part, int64_t count);

// Writes results as BF16 or FP32 with one NaN for all.
template <Isa>
void gemm_store(const float* from, int64_t count, bool to_f32, void* out);

template <>
void gemm_expand<Isa::kGeneric>(const bf16*, int64_t, int64_t, float, float*);
template <>
void gemm_segment<Isa::kGeneric>(const float*, int64_t, int64_t, const uint8_t*, int64_t, bool,
                                 float*);
template <>
void gemm_add<Isa::kGeneric>(float*, const float*, int64_t);
template <>
void gemm_store<Isa::kGeneric>(const float*, int64_t, bool, void*);

template <>
void gemm_expand<Isa::kAvx2>(const bf16*, int64_t, int64_t, float, float*);
template <>
void gemm_segment<Isa::kAvx2>(const float*, int64_t, int64_t, const uint8_t*, int64_t, bool,
                              float*);
template <>
void gemm_add<Isa::kAvx2>(float*, const float*, int64_t);
template <>
void gemm_store<Isa::kAvx2>(const float*, int64_t, bool, void*);

template <>
void gemm_expand<Isa::kAvx512>(const bf16*, int64_t, int64_t, float, float*);
template <>
void gemm_segment<Isa::kAvx512>(const float*, int64_t, int64_t, const uint8_t*, int64_t, bool,
                                float*);
template <>
void gemm_add<Isa::kAvx512>(float*, const float*, int64_t);
template <>
void gemm_store<Isa::kAvx512>(const float*, int64_t, bool, void*);

}  // namespace perigee::ops::cpu
