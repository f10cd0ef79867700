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
constexpr int kColumnsMax = static_cast<int>(kIndexGpuColumnsMax);
constexpr int kHeadGroup = gpu::kWgmmaHeads;
constexpr int kStride = kColumnsMax + 8;  // of BF16 rows in shared memory
constexpr int kTileColumns = 128;         // heads of a block's rows
constexpr int kTileRowsMax = 16;
constexpr unsigned kBlocksMax = 2048;  // of a launch

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
  int64_t first_row, rows, skip, scores_width;
  int heads, columns;
  int slots;      // columns of a row's heads: 8, 16 or a multiple of 32
  int tile_rows;  // rows that a block scores side by side
  int groups;     // of 32 columns
  float factor;
};

// Keys and queries in shared memory: e4m3 in swizzled rows of 128 bytes, or BF16.
union Tile {
  uint8_t codes[kPage * 128];
  bf16 values[kPage * kStride];
};
union alignas(1024) Queries {
  uint8_t codes[kHeadGroup * 128];
  bf16 values[kHeadGroup * kStride];
};

// Swizzled rows start at multiples of this.
constexpr size_t kAligned = 1024;
constexpr size_t kTileBytes = (sizeof(Tile) + kAligned - 1) / kAligned * kAligned;
static_assert(sizeof(Queries) % kAligned == 0);

// The rows of a block.
struct TileRows {
  int64_t first;  // in the launch
  const tensor::Part* part[kTileRowsMax];  // null: not scored
  int64_t position[kTileRowsMax];
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr bool kCodes = true;
#else
constexpr bool kCodes = false;
#endif

// A query of head `h` through the key format, by one warp; zeros beyond heads and columns. Returns its outer scale.
__device__ float put_query(const Problem& p, const bf16* q, int slot, int h, Queries& to) {
  const int lane = threadIdx.x % 32;
  const bool real = h < p.heads;
  const bf16* const x = q + static_cast<int64_t>(h) * p.columns;
  float value[kColumnsMax / 32];
  for (int i = 0; i < kColumnsMax / 32; ++i) {
    const int c = lane + i * 32;
    value[i] = real && c < p.columns ? to_float(x[c]) : 0.0f;
  }
  if (p.format == KeyFormat::kFp8) {
    float amax = 0;
    for (const float v : value) amax = gpu::larger_magnitude(amax, magnitude(v));
    const float scale = fp8_key_scale(gpu::warp_largest(amax, 32));
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
      const float scale = from_e8m0(mxfp4_scale(gpu::warp_largest(magnitude(v), 32)));
      v = flush_denormal(from_e2m1(scaled_e2m1(v, scale)) * scale);
    }
    to.values[slot * kStride + c] = real && c < p.columns ? to_bf16(v) : bf16{};
  }
  return 1.0f;
}

// A column of a key as BF16, or as the code that it is.
__device__ bf16 key_value(KeyFormat format, const uint8_t* values, const uint8_t* scales, int c) {
  if (format == KeyFormat::kFp8) return to_bf16(from_e4m3(values[c]));
  if (format == KeyFormat::kBf16) return bf16{static_cast<uint16_t>(values[2 * c] | values[2 * c + 1] << 8)};
  const auto code = static_cast<uint8_t>(c % 2 == 0 ? values[c / 2] & 15 : values[c / 2] >> 4);
  return to_bf16(flush_denormal(from_e2m1(code) * from_e8m0(scales[c / kMxfp4Group])));
}

// Keys of a page, zeros beyond `visible`.
__device__ void put_keys(const Problem& p, const uint8_t* page, int visible, Tile& to) {
  const int64_t j = p.columns;
  const bool codes = kCodes && p.format == KeyFormat::kFp8;
  const bool whole = j == kColumnsMax && reinterpret_cast<uintptr_t>(page) % sizeof(uint4) == 0;
  if (whole && (codes || p.format == KeyFormat::kBf16)) {  // pieces of 16 bytes go as they are
    const int pieces = codes ? kColumnsMax / 16 : kColumnsMax / 8;
    for (int i = threadIdx.x; i < kPage * pieces; i += kThreads) {
      const int slot = i / pieces;
      const int piece = i % pieces;
      const uint4 x = slot < visible ? reinterpret_cast<const uint4*>(page)[i] : uint4{};
      void* const at = codes ? static_cast<void*>(to.codes + gpu::swizzled(slot, piece * 16))
                             : static_cast<void*>(to.values + slot * kStride + piece * 8);
      *static_cast<uint4*>(at) = x;
    }
    return;
  }
  if (whole && p.format == KeyFormat::kMxfp4) {  // a group a thread
    for (int i = threadIdx.x; i < kPage * kColumnsMax / kMxfp4Group; i += kThreads) {
      const int slot = i / (kColumnsMax / kMxfp4Group);
      const int group = i % (kColumnsMax / kMxfp4Group);
      const uint4 x = slot < visible ? reinterpret_cast<const uint4*>(page)[i] : uint4{};
      const float scale = slot < visible ? from_e8m0(page[key_scale_offset(p.format, j, slot) + group]) : 0.0f;
      auto* const at = reinterpret_cast<uint32_t*>(to.values + slot * kStride + group * kMxfp4Group);
      const uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
      for (int w = 0; w < 4; ++w) {
#pragma unroll
        for (int pair = 0; pair < 4; ++pair) {
          const uint32_t byte = words[w] >> (8 * pair);
          const bf16 even = to_bf16(flush_denormal(from_e2m1(static_cast<uint8_t>(byte & 15)) * scale));
          const bf16 odd = to_bf16(flush_denormal(from_e2m1(static_cast<uint8_t>(byte >> 4 & 15)) * scale));
          at[w * 4 + pair] = static_cast<uint32_t>(odd.bits) << 16 | even.bits;
        }
      }
    }
    return;
  }
  for (int i = threadIdx.x; i < kPage * kColumnsMax; i += kThreads) {
    const int slot = i / kColumnsMax;
    const int c = i % kColumnsMax;
    const bool real = slot < visible && c < p.columns;
    const uint8_t* const values = page + key_value_offset(p.format, j, slot);
    if (codes) {
      to.codes[gpu::swizzled(slot, c)] = real ? values[c] : uint8_t{0};
    } else {
      const uint8_t* const scales = page + key_scale_offset(p.format, j, slot);
      to.values[slot * kStride + c] = real ? key_value(p.format, values, scales, c) : bf16{};
    }
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
    const uint32_t a[4] = {gpu::operand(k + s * 16), gpu::operand(low + s * 16), gpu::operand(k + s * 16 + 8),
                           gpu::operand(low + s * 16 + 8)};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bf16* const x = queries.values + (i * 8 + lane / 4) * kStride + lane % 4 * 2 + s * 16;
      const uint32_t b[2] = {gpu::operand(x), gpu::operand(x + 8)};
      gpu::mma_bf16(tile[i], a, b);
    }
  }
#pragma unroll
  for (int i = 0; i < 16; ++i) acc[i] = tile[i / 4][i % 4];
}

// max in an order that keeps NaN.
__device__ float relu(float x) { return x < 0.0f ? 0.0f : x; }

// Sums of kRows rows over the four lanes that hold their heads, (0 + 1) + (2 + 3); the lane ends with the sum of row
// row_of_lane().
template <int kRows>
__device__ float sum_lanes(const float (&x)[kRows]) {
  const bool odd = threadIdx.x % 2 != 0;
  const bool upper = threadIdx.x / 2 % 2 != 0;
  if constexpr (kRows == 4) {
    const float first = (odd ? x[2] : x[0]) + gpu::lane_xor(odd ? x[0] : x[2], 1);
    const float second = (odd ? x[3] : x[1]) + gpu::lane_xor(odd ? x[1] : x[3], 1);
    return (upper ? second : first) + gpu::lane_xor(upper ? first : second, 2);
  } else {
    const float mine = kRows == 2 && odd ? x[kRows - 1] : x[0];
    const float other = kRows == 2 && !odd ? x[kRows - 1] : x[0];
    const float sum = mine + gpu::lane_xor(other, 1);
    return sum + gpu::lane_xor(sum, 2);
  }
}

template <int kRows>
__device__ int row_of_lane() {
  const int t = threadIdx.x % 4;
  return kRows == 4 ? t % 2 * 2 + t / 2 : kRows == 2 ? t % 2 : 0;
}

// Whether the lane is the first with that row.
template <int kRows>
__device__ bool speaks() {
  return threadIdx.x % 4 < kRows;
}

// Scores of the rows [begin, end) of a tile, all of one part, against one page. kRows rows stand in a group of 32 columns, or
// one row in several groups.
template <int kRows>
__device__ void score_page(const Problem& p, const TileRows& tile, int begin, int end, const uint8_t* page, int64_t n,
                           const Tile& keys, const Queries* queries, const float* gates) {
  const int lane = threadIdx.x % 32;
  const int slot = threadIdx.x / 32 * 16 + lane / 4;  // and slot + 8
  const int groups_a_row = kRows == 1 ? p.slots / kHeadGroup : 1;
  float chain[2][kRows] = {};
  for (int i = begin * p.slots / kHeadGroup; i * kHeadGroup < end * p.slots; ++i) {
    float acc[16];
    dots(p, keys, queries[i], acc);
    const int first_head = i % groups_a_row * kHeadGroup;
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      const int column = j / 4 * 8 + lane % 4 * 2 + j % 2;
      const int h = kRows == 1 ? first_head + column : column % (kHeadGroup / kRows);
      float& sum = chain[j % 4 / 2][j / 4 * kRows / 4];
      if (h < p.heads) sum = fmaf(relu(acc[j]), gates[i * kHeadGroup + column], sum);
    }
    if (i % groups_a_row != groups_a_row - 1) continue;
    const int r = i / groups_a_row * kRows + row_of_lane<kRows>();
    for (int half = 0; half < 2; ++half) {
      float sum = sum_lanes<kRows>(chain[half]);
      for (float& c : chain[half]) c = 0;
      const int64_t position = n * kPage + slot + half * 8;
      if (!speaks<kRows>() || r < begin || r >= end || position > tile.position[r]) continue;
      if (p.format == KeyFormat::kFp8) sum = sum * gpu::get_float(page + key_scale_offset(p.format, p.columns, slot + half * 8));
      p.scores[(tile.first + r) * p.scores_stride + position] = to_bf16(sum);
    }
  }
}

// A block scores a tile of rows against every gridDim.y-th page.
template <int kRows>
__global__ void __launch_bounds__(kThreads) index_score_kernel(const __grid_constant__ Problem p) {
  extern __shared__ uint8_t unaligned[];
  __shared__ TileRows tile;
  uint8_t* const memory = unaligned + (kAligned - gpu::shared_address(unaligned) % kAligned) % kAligned;
  auto& keys = *reinterpret_cast<Tile*>(memory);
  auto* const queries = reinterpret_cast<Queries*>(memory + kTileBytes);
  auto* const gates = reinterpret_cast<float*>(queries + p.groups);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * p.tile_rows;
  const int rows = static_cast<int>(min(static_cast<int64_t>(p.tile_rows), p.rows - first));
  if (static_cast<int>(threadIdx.x) < rows) {
    const gpu::Place place = gpu::place_of(p.parts, p.part_of_row, p.first_row + first + threadIdx.x);
    const bool scored = place.part != nullptr && place.position + 1 > p.skip;
    tile.part[threadIdx.x] = scored ? place.part : nullptr;
    tile.position[threadIdx.x] = place.position;
  }
  if (threadIdx.x == 0) tile.first = first;
  __syncthreads();
  bool idle = true;
  for (int r = 0; r < rows; ++r) idle = idle && (tile.part[r] == nullptr || tile.position[r] / kPage < blockIdx.y);
  if (idle) return;
  for (int column = threadIdx.x / 32; column < p.groups * kHeadGroup; column += kWarps) {
    const int r = column / p.slots;
    const int h = column % p.slots;
    const bool real = r < rows && h < p.heads;
    const int64_t row = p.first_row + first + (real ? r : 0);
    const float scale = put_query(p, p.q + row * p.q_stride, column % kHeadGroup, real ? h : p.heads,
                                  queries[column / kHeadGroup]);
    if (threadIdx.x % 32 == 0) {
      gates[column] = real ? to_float(p.gates[row * p.gates_stride + h]) * p.factor * scale : 0.0f;
    }
  }
  for (int begin = 0, end; begin < rows; begin = end) {
    const tensor::Part* const part = tile.part[begin];
    for (end = begin + 1; end < rows && tile.part[end] == part; ++end) {
    }
    if (part == nullptr) continue;
    const tensor::PageView view = p.pages.of(*part);
    const int64_t length = tile.position[end - 1] + 1;
    for (int64_t n = blockIdx.y; n * kPage < length; n += gridDim.y) {
      const auto* const page = reinterpret_cast<const uint8_t*>(view.page(n * kPage));
      __syncthreads();
      put_keys(p, page, static_cast<int>(min(static_cast<int64_t>(kPage), length - n * kPage)), keys);
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
      gpu::wgmma_publish();
#endif
      __syncthreads();
      score_page<kRows>(p, tile, begin, end, page, n, keys, queries, gates);
    }
  }
}

template <int kRows>
void launch(const Context& context, const Problem& p) {
  const size_t bytes = kAligned + kTileBytes + static_cast<size_t>(p.groups) * (sizeof(Queries) + kHeadGroup * sizeof(float));
  gpu::allow_shared(reinterpret_cast<const void*>(index_score_kernel<kRows>), bytes, "index_score");
  const auto tiles = static_cast<unsigned>((p.rows + p.tile_rows - 1) / p.tile_rows);
  const auto pages = static_cast<unsigned>((p.scores_width + kPage - 1) / kPage);
  const dim3 grid(tiles, std::clamp(kBlocksMax / tiles, 1u, std::max(pages, 1u)));
  index_score_kernel<kRows><<<grid, kThreads, bytes, gpu::stream_of(context)>>>(p);
  gpu::check_launch("index_score");
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
  p.rows = scores.rows();
  p.scores_width = scores.dims[1];
  p.heads = static_cast<int>(q.dims[1]);
  p.slots = p.heads <= 8 ? 8 : p.heads <= 16 ? 16 : (p.heads + kHeadGroup - 1) / kHeadGroup * kHeadGroup;
  // Decode steps have a row a part, and pages of one part are no use to another.
  const bool alone = static_cast<size_t>(q.rows()) == parts.host.size();
  p.tile_rows = alone ? 1 : std::max(1, kTileColumns / p.slots);
  p.groups = (p.tile_rows * p.slots + kHeadGroup - 1) / kHeadGroup;
  p.columns = static_cast<int>(q.dims[2]);
  CHECK_LE(p.columns, kColumnsMax);
  p.factor = static_cast<float>(1 / std::sqrt(static_cast<double>(p.heads) * p.columns));
  if (p.slots == 8) return launch<4>(context, p);
  if (p.slots == 16) return launch<2>(context, p);
  launch<1>(context, p);
}

}  // namespace perigee::ops::cuda
