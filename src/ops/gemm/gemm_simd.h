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

// Smallest and largest exponent field (in place, 0 to 0x7f80) of k values and of what *low and *high hold; zeros and denormals do
// not lower *low.
template <Isa>
void gemm_exponents(const bf16* x, int64_t k, uint16_t* low, uint16_t* high);

// Results of some neighbouring panels, and where they go: row r, panel p are from[p * panel_stride + r * 16 ...].
struct GemmResult {
  const float* from;
  int64_t panel_stride;
  int64_t rows;
  int64_t columns;  // of all panels together; the last one may be cut
  bool to_f32;      // else BF16
  void* out;
  int64_t row_bytes;  // between rows of out
};
// Writes results with one NaN for all, a row's panels one after the other: they are neighbours in memory.
template <Isa>
void gemm_store(const GemmResult& result);

template <>
void gemm_expand<Isa::kGeneric>(const bf16*, int64_t, int64_t, float, float*);
template <>
void gemm_segment<Isa::kGeneric>(const float*, int64_t, int64_t, const uint8_t*, int64_t, bool,
                                 float*);
template <>
void gemm_add<Isa::kGeneric>(float*, const float*, int64_t);
template <>
void gemm_exponents<Isa::kGeneric>(const bf16*, int64_t, uint16_t*, uint16_t*);
template <>
void gemm_store<Isa::kGeneric>(const GemmResult&);

template <>
void gemm_expand<Isa::kAvx2>(const bf16*, int64_t, int64_t, float, float*);
template <>
void gemm_segment<Isa::kAvx2>(const float*, int64_t, int64_t, const uint8_t*, int64_t, bool,
                              float*);
template <>
void gemm_add<Isa::kAvx2>(float*, const float*, int64_t);
template <>
void gemm_exponents<Isa::kAvx2>(const bf16*, int64_t, uint16_t*, uint16_t*);
template <>
void gemm_store<Isa::kAvx2>(const GemmResult&);

template <>
void gemm_expand<Isa::kAvx512>(const bf16*, int64_t, int64_t, float, float*);
template <>
void gemm_segment<Isa::kAvx512>(const float*, int64_t, int64_t, const uint8_t*, int64_t, bool,
                                float*);
template <>
void gemm_add<Isa::kAvx512>(float*, const float*, int64_t);
template <>
void gemm_exponents<Isa::kAvx512>(const bf16*, int64_t, uint16_t*, uint16_t*);
template <>
void gemm_store<Isa::kAvx512>(const GemmResult&);

}  // namespace perigee::ops::cpu
