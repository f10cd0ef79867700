#include <algorithm>

#include "ops/gpu_launch.h"
#include "ops/gpu_records.cuh"
#include "ops/index_score/index_score.h"
#include "ops/index_score/index_wgmma.cuh"

namespace perigee::ops::cuda {
namespace {

constexpr int kWarps = 4;  // 16 keys of a page each
constexpr int kThreads = kWarps * 32;
constexpr int kPage = static_cast<int>(tensor::kPageTokens);
constexpr int kColumnsMax = 128;  // J
constexpr int kHeadGroup = gpu::kWgmmaHeads;
constexpr int kStride = kColumnsMax + 8;  // of BF16 rows in shared memory
constexpr unsigned kBlocksMax = 2048;     // of a launch

struct Problem {
  const bf16* q;
  int64_t q_stride;
  const bf16* gates;
  int64_t gates_stride;
  bf16* scores;
  int64_t scores_stride;
  const tensor::Part* parts;
  const int32_t* part_of_row;
  tensor::PagePlace pages;
  KeyFormat format;
  int64_t first_row, skip;
  int heads, groups, columns;  // groups of 32 heads
  float factor;
};

// Keys and queries in shared memory: e4m3 in swizzled rows of 128 bytes, or BF16.
union Tile {
  uint8_t codes[kPage * 128];
  bf16 values[kPage * kStride];
};
union Queries {
  uint8_t codes[kHeadGroup * 128];
  bf16 values[kHeadGroup * kStride];
};

// Swizzled rows start at multiples of this.
constexpr size_t kAligned = 1024;
constexpr size_t kTileBytes = (sizeof(Tile) + kAligned - 1) / kAligned * kAligned;
constexpr size_t kQueryBytes = (sizeof(Queries) + kAligned - 1) / kAligned * kAligned;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr bool kCodes = true;
#else
constexpr bool kCodes = false;
#endif

__device__ uint32_t word(const bf16* p) { return *reinterpret_cast<const uint32_t*>(p); }

__device__ float widen(bf16 x) { return to_float(x); }

// A query of head `h` through the key format, by one warp; zeros beyond heads and columns. Returns its outer scale.
__device__ float put_query(const Problem& p, const bf16* q, int slot, int h, Queries& to) {
  const int lane = threadIdx.x % 32;
  const bool real = h < p.heads;
  const bf16* const x = q + static_cast<int64_t>(h) * p.columns;
  float value[kColumnsMax / 32];
  for (int i = 0; i < kColumnsMax / 32; ++i) {
    const int c = lane + i * 32;
    value[i] = real && c < p.columns ? widen(x[c]) : 0.0f;
  }
  if (p.format == KeyFormat::kFp8) {
    float amax = 0;
    for (const float v : value) amax = gpu::larger_magnitude(amax, gpu::magnitude(v));
    const float scale = gpu::fp8_key_scale_of(gpu::warp_largest(amax, 32));
    for (int i = 0; i < kColumnsMax / 32; ++i) {
      const int c = lane + i * 32;
      const uint8_t code = real && c < p.columns ? gpu::scaled_e4m3_code(value[i], scale) : uint8_t{0};
      if (kCodes) {
        to.codes[gpu::swizzled(slot, c)] = code;
      } else {
        to.values[slot * kStride + c] = to_bf16(from_e4m3(code));
      }
    }
    return real ? scale : 0.0f;
  }
  for (int i = 0; i < kColumnsMax / 32; ++i) {
    const int c = lane + i * 32;
    float v = value[i];
    if (p.format == KeyFormat::kMxfp4) {
      const float scale = from_e8m0(mxfp4_scale(gpu::warp_largest(gpu::magnitude(v), 32)));
      v = flush_denormal(from_e2m1(gpu::scaled_e2m1_code(v, scale)) * scale);
    }
    to.values[slot * kStride + c] = real && c < p.columns ? to_bf16(v) : bf16{};
  }
  return 1.0f;
}

// Keys of a page, zeros beyond the row's last position.
__device__ void put_keys(const Problem& p, const uint8_t* page, int visible, Tile& to) {
  const int64_t j = p.columns;
  for (int i = threadIdx.x; i < kPage * kColumnsMax; i += kThreads) {
    const int slot = i / kColumnsMax;
    const int c = i % kColumnsMax;
    const bool real = slot < visible && c < p.columns;
    const uint8_t* const values = page + key_value_offset(p.format, j, slot);
    if (p.format == KeyFormat::kFp8) {
      const uint8_t code = real ? values[c] : uint8_t{0};
      if (kCodes) {
        to.codes[gpu::swizzled(slot, c)] = code;
      } else {
        to.values[slot * kStride + c] = to_bf16(from_e4m3(code));
      }
      continue;
    }
    bf16 value = {};
    if (real && p.format == KeyFormat::kBf16) {
      value.bits = static_cast<uint16_t>(values[2 * c] | values[2 * c + 1] << 8);
    } else if (real) {
      const uint8_t scale = page[key_scale_offset(p.format, j, slot) + c / kMxfp4Group];
      const auto code = static_cast<uint8_t>(c % 2 == 0 ? values[c / 2] & 15 : values[c / 2] >> 4);
      value = to_bf16(flush_denormal(from_e2m1(code) * from_e8m0(scale)));
    }
    to.values[slot * kStride + c] = value;
  }
}

// Dots of a warp's 16 keys with 32 heads: acc[4 i + j] belongs to head 8 i + 2 t + j mod 2 and key g + j / 2 * 8.
__device__ void dots(const Problem& p, const Tile& keys, const Queries& queries, float (&acc)[16]) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  if (p.format == KeyFormat::kFp8) {
    for (float& a : acc) a = 0;
    gpu::wgmma_e4m3(keys.codes, queries.codes, acc);
    return;
  }
#endif
  const int lane = threadIdx.x % 32;
  const int steps = (p.columns + 15) / 16;
  const bf16* const k = keys.values + (threadIdx.x / 32 * 16 + lane / 4) * kStride + lane % 4 * 2;
  float tile[4][4] = {};
  for (int s = 0; s < steps; ++s) {
    const bf16* const low = k + 8 * kStride;
    const uint32_t a[4] = {word(k + s * 16), word(low + s * 16), word(k + s * 16 + 8), word(low + s * 16 + 8)};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bf16* const x = queries.values + (i * 8 + lane / 4) * kStride + lane % 4 * 2 + s * 16;
      const uint32_t b[2] = {word(x), word(x + 8)};
      gpu::mma_bf16(tile[i], a, b);
    }
  }
#pragma unroll
  for (int i = 0; i < 16; ++i) acc[i] = tile[i / 4][i % 4];
}

// max in an order that keeps NaN.
__device__ float relu(float x) { return x < 0.0f ? 0.0f : x; }

// A block scores one row against every gridDim.x-th page.
__global__ void __launch_bounds__(kThreads) index_score_kernel(const __grid_constant__ Problem p) {
  extern __shared__ uint8_t unaligned[];
  uint8_t* const memory = unaligned + (kAligned - __cvta_generic_to_shared(unaligned) % kAligned) % kAligned;
  auto& keys = *reinterpret_cast<Tile*>(memory);
  uint8_t* const queries = memory + kTileBytes;
  auto* const gates = reinterpret_cast<float*>(queries + p.groups * kQueryBytes);
  const auto group = [&](int i) -> Queries& { return *reinterpret_cast<Queries*>(queries + i * kQueryBytes); };
  const int64_t row = p.first_row + blockIdx.y;
  const gpu::Place place = gpu::place_of(p.parts, p.part_of_row, row);
  if (place.part == nullptr || place.position + 1 <= p.skip) return;
  const int64_t pages = place.position / kPage + 1;
  if (blockIdx.x >= pages) return;
  for (int h = threadIdx.x / 32; h < p.groups * kHeadGroup; h += kWarps) {
    const float scale = put_query(p, p.q + row * p.q_stride, h % kHeadGroup, h, group(h / kHeadGroup));
    if (threadIdx.x % 32 == 0) {
      gates[h] = h < p.heads ? widen(p.gates[row * p.gates_stride + h]) * p.factor * scale : 0.0f;
    }
  }
  const tensor::PageView view = p.pages.of(*place.part);
  const int lane = threadIdx.x % 32;
  for (int64_t n = blockIdx.x; n < pages; n += gridDim.x) {
    const auto* const page = reinterpret_cast<const uint8_t*>(view.page(n * kPage));
    const auto visible = static_cast<int>(min(static_cast<int64_t>(kPage), place.position + 1 - n * kPage));
    put_keys(p, page, visible, keys);
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    gpu::wgmma_publish();
#endif
    __syncthreads();
    float chain[2] = {0, 0};  // of keys g and g + 8; this lane's chain is t
    for (int i = 0; i < p.groups; ++i) {
      float acc[16];
      dots(p, keys, group(i), acc);
#pragma unroll
      for (int j = 0; j < 16; ++j) {
        const int h = i * kHeadGroup + j / 4 * 8 + lane % 4 * 2 + j % 2;
        if (h < p.heads) chain[j % 4 / 2] = fmaf(relu(acc[j]), gates[h], chain[j % 4 / 2]);
      }
    }
    for (int half = 0; half < 2; ++half) {
      float sum = chain[half] + gpu::lane_float(chain[half], 1);
      sum = sum + gpu::lane_float(sum, 2);
      const int slot = threadIdx.x / 32 * 16 + lane / 4 + half * 8;
      if (lane % 4 != 0 || slot >= visible) continue;
      if (p.format == KeyFormat::kFp8) sum = sum * gpu::get_float(page + key_scale_offset(p.format, p.columns, slot));
      p.scores[blockIdx.y * p.scores_stride + n * kPage + slot] = to_bf16(sum);
    }
    __syncthreads();
  }
}

}  // namespace

void index_score(const Context& context, const Tensor& q, const Tensor& gates, KeyFormat format, const tensor::Parts& parts,
                 const tensor::PagePlace& keys, int64_t first_row, int64_t skip, const Tensor& scores) {
  if (scores.rows() == 0) return;
  Problem p = {};
  p.q = q.as<bf16>();
  p.q_stride = q.row_stride;
  p.gates = gates.as<bf16>();
  p.gates_stride = gates.row_stride;
  p.scores = scores.as<bf16>();
  p.scores_stride = scores.row_stride;
  p.parts = parts.device;
  p.part_of_row = parts.part_of_row;
  p.pages = keys;
  p.format = format;
  p.first_row = first_row;
  p.skip = skip;
  p.heads = static_cast<int>(q.dims[1]);
  p.groups = (p.heads + kHeadGroup - 1) / kHeadGroup;
  p.columns = static_cast<int>(q.dims[2]);
  CHECK_LE(p.columns, kColumnsMax);
  p.factor = static_cast<float>(1 / std::sqrt(static_cast<double>(p.heads) * p.columns));
  const size_t bytes = kAligned + kTileBytes + static_cast<size_t>(p.groups) * (kQueryBytes + kHeadGroup * sizeof(float));
  gpu::allow_shared(reinterpret_cast<const void*>(index_score_kernel), bytes, "index_score");
  const auto rows = static_cast<unsigned>(scores.rows());
  const auto pages = static_cast<unsigned>((scores.dims[1] + kPage - 1) / kPage);
  const dim3 grid(std::clamp(kBlocksMax / rows, 1u, std::max(pages, 1u)), rows);
  index_score_kernel<<<grid, kThreads, bytes, gpu::stream_of(context)>>>(p);
  gpu::check_launch("index_score");
}

}  // namespace perigee::ops::cuda
