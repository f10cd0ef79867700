#include <algorithm>

#include "ops/gemm/gemm.h"
#include "ops/gpu_launch.h"
#include "ops/gpu_mma.cuh"
#include "ops/moe_gemm/moe_gemm.h"
#include "ops/moe_gemm/moe_layout.h"

namespace perigee::ops::cuda {
namespace {

constexpr int kWarps = 4;    // 16 outputs each: a block has 64
constexpr int kTokens = 8;   // of one instruction
constexpr int kColumns = 64;  // of a round

__device__ uint32_t rotate_left(uint32_t x, int n) { return x << n | x >> (32 - n); }

// Fragments of 64 columns of a warp's 16 outputs, read one round ahead.
struct Mxfp4Reader {
  const uint8_t* base;
  int64_t expert_bytes;
  int64_t blocks;  // of 64 columns

  struct Raw {
    uint4 codes;
    uint32_t scales;
  };
  __device__ Raw load(int expert, int tile, int round, int lane) const {
    const uint8_t* const block = base + expert * expert_bytes + (tile / 4 * blocks + round) * kFragmentBlockBytes;
    return {*reinterpret_cast<const uint4*>(block + tile % 4 * 512 + lane * 16),
            *reinterpret_cast<const uint32_t*>(block + kFragmentCodeBytes + tile % 4 * 32 + lane / 4 * 4)};
  }
  // Code bits become a BF16 of the code's value times 2^-126; the multiplier undoes that. All exact.
  __device__ static void fragments(const Raw& raw, uint32_t (&a)[4][4]) {
    constexpr uint32_t kMask = 0x81C081C0u;
    const uint32_t words[4] = {raw.codes.x, raw.codes.y, raw.codes.z, raw.codes.w};
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      const uint32_t w = words[s];
      a[s][0] = w & kMask;
      a[s][1] = rotate_left(w, 12) & kMask;
      a[s][2] = rotate_left(w, 6) & kMask;
      a[s][3] = (rotate_left(w, 2) & 0x80C080C0u) | (rotate_left(w, 10) & 0x01000100u);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32_t exponent = raw.scales >> (s / 2 * 16 + j % 2 * 8) & 0xffu;
        a[s][j] = gpu::mul_bf16x2(a[s][j], exponent << 7 | exponent << 23);
      }
    }
  }
};

struct Bf16Reader {
  const uint8_t* base;
  int64_t expert_bytes;
  int64_t steps;  // of 16 columns

  struct Raw {
    uint4 step[4];
  };
  __device__ Raw load(int expert, int tile, int round, int lane) const {
    const auto* const from = reinterpret_cast<const uint4*>(base + expert * expert_bytes) + tile * steps * 32 + lane;
    Raw raw;
#pragma unroll
    for (int s = 0; s < 4; ++s) raw.step[s] = round * 4 + s < steps ? from[(round * 4 + s) * 32] : uint4{};
    return raw;
  }
  __device__ static void fragments(const Raw& raw, uint32_t (&a)[4][4]) {
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      a[s][0] = raw.step[s].x, a[s][1] = raw.step[s].y, a[s][2] = raw.step[s].z, a[s][3] = raw.step[s].w;
    }
  }
};

struct Problem {
  const bf16* x;
  int64_t x_stride;
  const int32_t* source;
  const int32_t* offsets;
  void* out;
  int64_t out_stride;
  int n, k;
  int rounds_per_segment;
  bool full;   // out is FP32
  bool words;  // rows of x can be read in words of two columns
};

__device__ uint32_t two_columns(const Problem& p, const bf16* row, int column) {
  return row != nullptr ? gpu::operand(row, column, p.k, p.words) : 0u;
}

// A block has 64 outputs of one expert and walks over the expert's slots, kTiles * 8 at a time.
template <class Reader, int kTiles>
__global__ void __launch_bounds__(kWarps * 32) moe_gemm_kernel(const Reader reader, const __grid_constant__ Problem p) {
  const int expert = blockIdx.y;
  const int begin = p.offsets[expert];
  const int end = p.offsets[expert + 1];
  const int tile = blockIdx.x * kWarps + threadIdx.x / 32;
  if (begin == end || tile * 16 >= p.n) return;
  const int lane = threadIdx.x % 32;
  const int rounds = (p.k + kColumns - 1) / kColumns;
  for (int first = begin; first < end; first += kTiles * kTokens) {
    const bf16* rows[kTiles];
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const int slot = first + i * kTokens + lane / 4;
      rows[i] = slot >= end ? nullptr : p.x + (p.source != nullptr ? p.source[slot] : slot) * p.x_stride;
    }
    float acc[kTiles][4] = {};
    float total[kTiles][4] = {};
    typename Reader::Raw next = reader.load(expert, tile, 0, lane);
    for (int round = 0; round < rounds; ++round) {
      uint32_t a[4][4];
      Reader::fragments(next, a);
      if (round + 1 < rounds) next = reader.load(expert, tile, round + 1, lane);
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        const int column = round * kColumns + s * 16 + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
          const uint32_t b[2] = {two_columns(p, rows[i], column), two_columns(p, rows[i], column + 8)};
          gpu::mma_bf16(acc[i], a[s], b);
        }
      }
      if ((round + 1) % p.rounds_per_segment != 0 && round + 1 != rounds) continue;
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          total[i][j] = round < p.rounds_per_segment ? acc[i][j] : total[i][j] + acc[i][j];
          acc[i][j] = 0;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int slot = first + i * kTokens + lane % 4 * 2 + j % 2;
        const int output = tile * 16 + lane / 4 + j / 2 * 8;
        if (slot >= end || output >= p.n) continue;
        const int64_t at = slot * p.out_stride + output;
        if (p.full) {
          static_cast<float*>(p.out)[at] = total[i][j];
        } else {
          static_cast<bf16*>(p.out)[at] = to_bf16(total[i][j]);
        }
      }
    }
  }
}

template <class Reader>
void launch(const Context& context, const Reader& reader, const Problem& p, int64_t experts, int64_t slots) {
  const dim3 grid(static_cast<unsigned>((p.n + kWarps * 16 - 1) / (kWarps * 16)), static_cast<unsigned>(experts));
  const cudaStream_t stream = gpu::stream_of(context);
  if (slots <= experts * kTokens) {
    moe_gemm_kernel<Reader, 1><<<grid, kWarps * 32, 0, stream>>>(reader, p);
  } else {
    moe_gemm_kernel<Reader, 4><<<grid, kWarps * 32, 0, stream>>>(reader, p);
  }
  gpu::check_launch("moe_gemm");
}

}  // namespace

void moe_gemm(const Context& context, const Tensor& x, const Tensor* source, const Tensor& offsets,
              std::span<const Weight> experts, const Tensor& out) {
  const Weight& w = experts[0];
  if (out.size() == 0) return;
  const auto* const base = static_cast<const uint8_t*>(w.data);
  const int64_t distance = experts.size() > 1 ? static_cast<const uint8_t*>(experts[1].data) - base : 0;
  for (size_t e = 0; e < experts.size(); ++e) {
    CHECK(static_cast<const uint8_t*>(experts[e].data) == base + static_cast<int64_t>(e) * distance);
  }
  const bool words = reinterpret_cast<uintptr_t>(x.data) % 4 == 0 && x.row_stride % 2 == 0 && w.k % 2 == 0;
  const Problem p = {x.as<bf16>(),
                     x.row_stride,
                     source != nullptr ? source->as<int32_t>() : nullptr,
                     offsets.as<int32_t>(),
                     out.data,
                     out.row_stride,
                     static_cast<int>(w.n),
                     static_cast<int>(w.k),
                     static_cast<int>(gemm_gpu_segment(w.k) / kColumns),
                     out.dtype == tensor::DType::kF32,
                     words};
  const auto count = static_cast<int64_t>(experts.size());
  if (w.layout == tensor::WeightLayout::kFragmentMxfp4) {
    launch(context, Mxfp4Reader{base, distance, (w.k + kColumns - 1) / kColumns}, p, count, out.rows());
  } else {
    launch(context, Bf16Reader{base, distance, (w.k + 15) / 16}, p, count, out.rows());
  }
}

}  // namespace perigee::ops::cuda
