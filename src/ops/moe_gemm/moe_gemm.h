// Multiplies every expert's grouped rows by that expert's matrix: out[i, n] = sum over k of x[source[i], k] * w_e[n, k] for
// the grouped slots i of expert e.
//
// Math     out = gathered x times w_e^T, e by ranges of slots.
// Shapes   x [R, K] act, any row stride · source [M] i32 or null (slot i reads row i, R = M) · offsets [E+1] i32: slots of
//          expert e · experts: E matrices [N, K], all kTiledMxfp4 or all kTiledBf16 (kCpu), kFragmentMxfp4 or kFragmentBf16
//          (kCuda), kRowMajorMxfp4 or kRowMajorBf16 (kReference) · out [M, N] act or real, any row stride, not
//          overlapping x. M may be 0, experts may be empty.
// Limits   MXFP4: K is a multiple of 32, the width of a scale.
// Layout   kTiledMxfp4: panels of 16 output rows. A panel holds its codes [K/32][4][16 rows][4 bytes], the four bytes being
//          the file's own for 8 columns of one row (column 2i in the low nibble of byte i, 2i + 1 in the high one), then its
//          scales [K/32][16 rows] (e8m0 bytes): 4.25 bits a weight, two linear streams. Weight::scales stays null.
//          kFragmentMxfp4: docs/kernels/arithmetic.md, "Experts on packed MXFP4"; rows in their natural order, matrices padded to
//          blocks of 64 x 64 with zeros, an expert's matrix at the same distance from the one before for all experts of a call.
// Numerics kCuda: the bits of ops/gemm on the dequantised matrix. kCpu: the arithmetic of ops/gemm on the codes' values 0, 0.5,
//          1, 1.5, 2, 3, 4, 6, with the scale applied once a block:
//          acc = fma(2^(e - 127), even + odd, acc). As long as nothing leaves the FP32 range this equals, bit for bit,
//          ops/gemm on the dequantised matrix; matrix tiles do the latter and are used only after the exponents of
//          activations and scales prove it. Activations below 2^-101 count as zero, so does scale byte 0 (2^-127, a denormal);
//          scale byte 255 makes the output NaN. Row independence and bits across instruction sets as in ops/gemm.
//          |error| <= (18 + min(K/32, 56) + K/1792) 2^-24 sum |x w|, and for BF16 outputs 2^-8 of the result.
// Cost     4.25 N K / 8 bytes of every expert with rows, 2 M N K flops: memory-bound until about ten rows an expert.
// Errors   CHECK on shapes and types.
// Threads  One parallel loop over (expert, row part, panel), balanced by cost; each output is computed by one thread.
// Source   OCP Microscaling Formats 1.0 (e2m1, e8m0, blocks of 32).
// Tests    moe_gemm_test.cc: hand numbers, reference, equality with gemm on dequantised weights, extreme scales, bits of every
//          instruction set, row invariance.
#pragma once

#include <cstdint>
#include <span>

#include "ops/context.h"
#include "tensor/tensor.h"
#include "tensor/weight.h"

namespace perigee::ops {

using tensor::Tensor;
using tensor::Weight;

// Bytes of a packed MXFP4 [n, k] matrix, kTiledMxfp4 or kFragmentMxfp4: exactly 4.25 bits a weight when n and k are multiples
// of the layout's block.
int64_t moe_packed_bytes(tensor::WeightLayout layout, int64_t n, int64_t k);

// Whether a layout can hold these scale bytes: kFragmentMxfp4 ends at 128, a scale of 2.
bool moe_packable(tensor::WeightLayout layout, const uint8_t* scales, int64_t count);

// Writes rows [row_offset, row_offset + row_count) of a packed matrix of n_total rows from the file's codes
// [row_count, k/2] and scales [row_count, k/32]. Different rows may be packed from different threads. The call that
// writes the last row also writes the padding rows.
void moe_pack_mxfp4(tensor::WeightLayout layout, const uint8_t* codes, const uint8_t* scales, int64_t row_count, int64_t k,
                    void* packed, int64_t n_total, int64_t row_offset);

void moe_gemm(const Context& context, const Tensor& x, const Tensor* source, const Tensor& offsets,
              std::span<const Weight> experts, const Tensor& out);

namespace ref {
void moe_gemm(const Context& context, const Tensor& x, const Tensor* source, const Tensor& offsets,
              std::span<const Weight> experts, const Tensor& out);
}
namespace cuda {
void moe_gemm(const Context& context, const Tensor& x, const Tensor* source, const Tensor& offsets,
              std::span<const Weight> experts, const Tensor& out);
}
namespace cpu {
void moe_gemm(const Context& context, const Tensor& x, const Tensor* source, const Tensor& offsets,
              std::span<const Weight> experts, const Tensor& out);
}

}  // namespace perigee::ops
