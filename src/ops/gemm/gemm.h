// Multiplies rows of activations by a dense BF16 matrix: out[t, n] = sum over k of x[t, k] * w[n,
// k].
//
// Math     out = x w^T.
// Shapes   x [T, K] act, any row stride · w [N, K] kTiledBf16 (kCpu), kFragmentBf16 (kCuda) or kRowMajorBf16 (kReference)
// · out [T, N] act or real,
//          any row stride, not overlapping x. T, N may be 0.
// Limits   w.k equals K and w.n equals N: a product of other shapes is a bug of the caller.
// Layout   kTiledBf16: panels of 16 output rows, one after the other. A panel holds, for each pair
// of columns (2j, 2j+1),
//          16 rows x 2 values = 64 bytes: one vector load, and 16 pairs are one AMX tile. K is
//          padded to a multiple of 32 and N to a multiple of 16 with zeros.
//          kFragmentBf16: blocks [N/16][K/16] of 16 rows x 16 columns, 512 bytes: 16 bytes for each lane of a warp, its
//          registers of the matrix instruction (ops/gpu_mma.cuh). Padded to whole blocks with zeros.
// Numerics kCuda: docs/kernels/arithmetic.md, "Dense products".
//          kCpu: FP32. Per block of 32 columns two chains of fused multiply-adds from zero, over the even and the odd columns
//          in ascending order; even + odd is added to the accumulator. K is cut into segments of
//          1792 columns, each with an accumulator from zero; the first segment is the result, later
//          ones are added in order. This is the arithmetic of AMX BF16 tiles, so plain code, AVX2,
//          AVX-512 and AMX give one set of bits, whatever T is. Denormals count as zero. A NaN
//          result is the quiet NaN 0x7fc00000. BF16 outputs are rounded once, to nearest even.
//          Against exact arithmetic: |error| <= (17 + min(K/32, 56) + K/1792) 2^-24 sum |x w| and,
//          for BF16, 2^-8 of the result.
// Cost     2 N K bytes of weights + 2 T K + (2 or 4) T N, and 2 T N K flops: memory-bound for few
// rows, matrix-bound for many. Errors   CHECK on shapes and types. Threads  One parallel loop over
// (item, row part, panel), balanced by cost; each output is computed by one thread. Source   The
// order of additions inside a tile was measured on the hardware: docs/kernels/gemm.md. Tests
// gemm_test.cc: hand numbers, reference with the bound above, bits of every instruction set, row
// invariance.
#pragma once

#include <cstdint>
#include <span>

#include "ops/context.h"
#include "tensor/tensor.h"
#include "tensor/weight.h"

namespace perigee::ops {

using tensor::Tensor;
using tensor::Weight;

constexpr int64_t kGemmPanel =
    16;  // output rows of a panel: the lanes of a vector, the columns of a tile
constexpr int64_t kGemmBlock = 32;      // columns of one tile instruction
constexpr int64_t kGemmSegment = 1792;  // columns of one accumulator
constexpr int64_t kGemmSegmentGpu = 896;  // most columns of one accumulator on a GPU
constexpr int64_t kGemmFragment = 16;     // outputs and columns of a block of kFragmentBf16

// Bytes of a packed [n, k] matrix.
int64_t gemm_packed_bytes(tensor::WeightLayout layout, int64_t n, int64_t k);

// Columns of one accumulator on a GPU: ceil(k / 896) equal segments, rounded up to 64 columns.
constexpr int64_t gemm_gpu_segment(int64_t k) {
  const int64_t segments = k > kGemmSegmentGpu ? (k + kGemmSegmentGpu - 1) / kGemmSegmentGpu : 1;
  const int64_t columns = ((k + segments - 1) / segments + 63) / 64 * 64;
  return columns > 0 ? columns : 64;
}

// Writes rows [row_offset, row_offset + row_count) of a packed matrix of n_total rows; `row_stride`
// counts elements. Different rows may be packed from different threads. The call that writes the
// last row also writes the padding rows.
void gemm_pack_rows(tensor::WeightLayout layout, const bf16* rows, int64_t row_count, int64_t k, int64_t row_stride,
                    void* packed, int64_t n_total, int64_t row_offset);

void gemm(const Context& context, const Tensor& x, const Weight& w, const Tensor& out);

struct GemmItem {
  Tensor x;
  Weight w;
  Tensor out;
};

// Independent products in one parallel loop.
void gemm_batched(const Context& context, std::span<const GemmItem> items);

namespace ref {
void gemm_batched(const Context& context, std::span<const GemmItem> items);
}
namespace cuda {
void gemm_batched(const Context& context, std::span<const GemmItem> items);
}
namespace cpu {
void gemm_batched(const Context& context, std::span<const GemmItem> items);
}

}  // namespace perigee::ops
