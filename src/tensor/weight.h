// What    A matrix in the layout that one device's products read: dense or MXFP4, plain or tiled.
// Owner   tensor. Made by the pack functions of ops/gemm and ops/moe_gemm while loading; read by these ops.
// Threads Read-only after loading.
// Errors  None.
#pragma once

#include <cstdint>

namespace perigee::tensor {

enum class WeightLayout : uint8_t {
  kRowMajorBf16,   // [N, K] as on disk: the reference device
  kRowMajorMxfp4,  // [N, K/2] codes and [N, K/32] scales as on disk: the reference device
  kTiledBf16,      // CPU: panels of 16 rows, pairs of columns (ops/gemm/gemm.h)
  kTiledMxfp4,     // CPU: panels of 16 rows, codes of column pairs, scales per 32 columns (ops/moe_gemm/moe_gemm.h)
  kFragmentBf16,   // GPU: blocks of 16 rows x 16 columns as a warp's registers (ops/gemm/gemm.h)
  kFragmentMxfp4,  // GPU: blocks of 64 rows x 64 columns, codes in order of registers, then scales (ops/moe_gemm/moe_gemm.h)
};

struct Weight {
  WeightLayout layout = WeightLayout::kRowMajorBf16;
  int64_t n = 0;                   // output width
  int64_t k = 0;                   // input width
  const void* data = nullptr;      // values or codes
  const uint8_t* scales = nullptr; // e8m0, MXFP4 only
};

}  // namespace perigee::tensor
