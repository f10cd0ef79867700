#include <algorithm>

#include "ops/gpu_launch.h"
#include "ops/mla/mla.h"
#include "ops/mla/mla_piece.cuh"

namespace perigee::ops::cuda {
namespace {

using namespace gpu::piece;

// Softmax over some slots: values times their weights, with the largest exponent and the sum of weights beside them.
struct Join {
  float max, sum;
  // Takes in what comes behind, and gives the factors that the values of both sides need.
  __device__ void add(float other_max, float other_sum, float& old_factor, float& new_factor) {
    const float now = fmaxf(max, other_max);
    old_factor = power(max, now);
    new_factor = power(other_max, now);
    sum = fmaf(sum, old_factor, other_sum * new_factor);
    max = now;
  }
};
__device__ Join empty() { return {-float_from_bits(0x7f800000u), 0.0f}; }

// Joins what `from` holds to `total` and empties it; the first 16 threads keep the books of both in shared memory.
__device__ void join(const Shared& s, float* from_max, float* from_sum, Values& from, float* total_max, float* total_sum,
                     Values& total) {
  if (threadIdx.x < kHeads) {
    const int h = threadIdx.x;
    Join j = {total_max[h], total_sum[h]};
    j.add(from_max[h], from_sum[h], s.join_old[h], s.join_new[h]);
    total_max[h] = j.max;
    total_sum[h] = j.sum;
    from_max[h] = empty().max;
    from_sum[h] = 0;
  }
  __syncthreads();
  const int g = threadIdx.x % 32 / 4;
#pragma unroll
  for (int i = 0; i < kValueTiles; ++i) {
    for (int j = 0; j < 4; ++j) {
      const int h = g + j / 2 * 8;
      total[i][j] = fmaf(total[i][j], s.join_old[h], from[i][j] * s.join_new[h]);
      from[i][j] = 0;
    }
  }
}

// One row and 16 heads.
struct Row {
  int64_t row;
  int head;
  gpu::Place place;
  const int32_t* list;
  int count;
};

__device__ Row row_of_block(const Problem& p) {
  const int64_t row = blockIdx.x;
  const gpu::Place place = gpu::place_of(p.parts, p.part_of_row, row);
  const int32_t* const list = p.positions != nullptr ? p.positions + row * p.positions_stride : nullptr;
  const int count = place.part == nullptr ? 0 : list != nullptr ? p.counts[row] : static_cast<int>(place.position + 1);
  return {row, static_cast<int>(blockIdx.y) * kHeads, place, list, count};
}

__device__ void load_query(const Problem& p, const Row& r, const Shared& s) {
  for (int i = threadIdx.x; i < kHeads * p.steps * 16; i += kThreads) {
    const int h = i / (p.steps * 16);
    const int c = i % (p.steps * 16);
    const bool inside = r.head + h < p.heads && c < p.width;
    s.q[h * p.stride + c] = inside ? p.q[r.row * p.q_stride + (r.head + h) * p.width + c] : bf16{};
  }
  if (threadIdx.x < kHeads) {
    for (float* f : {s.max, s.stretch_max, s.total_max}) f[threadIdx.x] = empty().max;
    for (float* f : {s.sum, s.stretch_sum, s.total_sum}) f[threadIdx.x] = 0;
  }
}

// Slots [begin, end) of one segment.
__device__ void run_segment(const Problem& p, const Row& r, int begin, int end, const Shared& s, Values& acc) {
  for (int at = begin; at < end; at += kPiece) {
    __syncthreads();
    load_piece(p, r.place, r.list, at, r.count, s);
    __syncthreads();
    score_piece(p, at, r.count, s);
    __syncthreads();
    weigh_piece(p, s);
    __syncthreads();
    add_values(p, s, acc);
  }
}

// Slots [begin, end) of one stretch, its segments joined from empty.
__device__ void run_stretch(const Problem& p, const Row& r, int begin, int end, const Shared& s, Values& acc, Values& stretch) {
  for (int at = begin; at < end; at += kSegment) {
    run_segment(p, r, at, min(end, at + kSegment), s, acc);
    join(s, s.max, s.sum, acc, s.stretch_max, s.stretch_sum, stretch);
  }
}

// Calls f(tile and place in it, head, column) for every value of this thread that the problem has.
template <class F>
__device__ void each_value(const Problem& p, const Row& r, F&& f) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kValueTiles; ++i) {
    const int column = (threadIdx.x / 32 * kValueTiles + i) * 8 + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int h = lane / 4 + j / 2 * 8;
      if (r.head + h < p.heads && column + j % 2 < p.values) f(i, j, h, column + j % 2);
    }
  }
}

__device__ bf16 weighted(float value, float sum) { return to_bf16(sum == 0 ? 0.0f : value * (1.0f / sum)); }

__device__ float log_sum(float max, float sum) {
  constexpr float kLn2 = 0.69314718055994531f;
  return sum == 0 ? empty().max : (max + log2f(sum)) * kLn2;
}

// A block has a row and 16 heads.
__global__ void __launch_bounds__(kThreads) mla_kernel(const __grid_constant__ Problem p) {
  extern __shared__ __align__(16) uint8_t memory[];
  const Shared s = cut(memory, p);
  const Row r = row_of_block(p);
  if (r.place.part == nullptr) return;
  load_query(p, r, s);
  Values acc = {}, stretch = {}, total = {};
  for (int begin = 0; begin < r.count; begin += kStretch) {
    run_stretch(p, r, begin, min(r.count, begin + kStretch), s, acc, stretch);
    __syncthreads();  // every thread has used the factors of the join before
    join(s, s.stretch_max, s.stretch_sum, stretch, s.total_max, s.total_sum, total);
  }
  __syncthreads();
  each_value(p, r, [&](int i, int j, int h, int column) {
    p.out[r.row * p.out_stride + (r.head + h) * p.values + column] = weighted(total[i][j], s.total_sum[h]);
  });
  if (threadIdx.x < kHeads && r.head + static_cast<int>(threadIdx.x) < p.heads) {
    p.lse[r.row * p.lse_stride + r.head + threadIdx.x] = log_sum(s.total_max[threadIdx.x], s.total_sum[threadIdx.x]);
  }
}

// What a row is divided into: segments while it has one stretch, stretches beyond.
__device__ int unit_of(int count) { return count <= kStretch ? kSegment : kStretch; }

__device__ float* partial_of(const Problem& p, int64_t row, int unit, int head) {
  return p.partial + ((row * p.units + unit) * p.heads + head) * (p.values + 2);
}

// A block has a row, 16 heads and every gridDim.z-th unit, which it leaves unjoined.
__global__ void __launch_bounds__(kThreads) mla_unit_kernel(const __grid_constant__ Problem p) {
  extern __shared__ __align__(16) uint8_t memory[];
  const Shared s = cut(memory, p);
  const Row r = row_of_block(p);
  const int unit = unit_of(r.count);
  if (static_cast<int>(blockIdx.z) * unit >= r.count) return;
  load_query(p, r, s);
  Values acc = {}, stretch = {};
  for (int u = blockIdx.z; u * unit < r.count; u += gridDim.z) {
    const int end = min(r.count, (u + 1) * unit);
    const bool single = unit == kSegment;
    if (single) {
      run_segment(p, r, u * unit, end, s, acc);
    } else {
      run_stretch(p, r, u * unit, end, s, acc, stretch);
    }
    __syncthreads();
    each_value(p, r, [&](int i, int j, int h, int column) {
      partial_of(p, r.row, u, r.head + h)[column] = single ? acc[i][j] : stretch[i][j];
    });
    float* const max = single ? s.max : s.stretch_max;
    float* const sum = single ? s.sum : s.stretch_sum;
    if (threadIdx.x < kHeads) {
      if (r.head + static_cast<int>(threadIdx.x) < p.heads) {
        float* const books = partial_of(p, r.row, u, r.head + threadIdx.x) + p.values;
        books[0] = max[threadIdx.x];
        books[1] = sum[threadIdx.x];
      }
      max[threadIdx.x] = empty().max;
      sum[threadIdx.x] = 0;
    }
#pragma unroll
    for (int i = 0; i < kValueTiles; ++i) {
      for (int j = 0; j < 4; ++j) acc[i][j] = stretch[i][j] = 0;
    }
  }
}

// A block joins the units of a row and head in their order; a thread has some columns.
__global__ void __launch_bounds__(kThreads) mla_join_kernel(const __grid_constant__ Problem p) {
  const Row r = row_of_block(p);
  if (r.place.part == nullptr) return;
  const int head = blockIdx.y;
  const int unit = unit_of(r.count);
  const int units = (r.count + unit - 1) / unit;
  for (int column = threadIdx.x; column < p.values; column += kThreads) {
    Join all = empty();
    float value = 0, old_factor, new_factor;
    for (int u = 0; u < units; ++u) {
      const float* const from = partial_of(p, r.row, u, head);
      all.add(from[p.values], from[p.values + 1], old_factor, new_factor);
      value = fmaf(value, old_factor, from[column] * new_factor);
    }
    if (unit == kSegment) {  // the one stretch is joined to nothing, as every first one is
      Join total = empty();
      total.add(all.max, all.sum, old_factor, new_factor);
      value = fmaf(0.0f, old_factor, value * new_factor);
      all = total;
    }
    p.out[r.row * p.out_stride + head * p.values + column] = weighted(value, all.sum);
    if (column == 0) p.lse[r.row * p.lse_stride + head] = log_sum(all.max, all.sum);
  }
}

}  // namespace

void mla(const Context& context, const Tensor& q, LatentFormat format, int64_t latent_width, double scale,
         const tensor::Parts& parts, const tensor::PagePlace& latents, const Selection* selection, const Tensor& workspace,
         const Tensor& out, const Tensor& lse) {
  if (q.size() == 0) return;
  CHECK_LE(latent_width, kValuesMax);
  constexpr double kLog2E = 1.4426950408889634073599;
  Problem p = {};
  p.q = q.as<bf16>();
  p.q_stride = q.row_stride;
  p.out = out.as<bf16>();
  p.out_stride = out.row_stride;
  p.lse = lse.as<float>();
  p.lse_stride = lse.row_stride;
  if (selection != nullptr) {
    p.physical = selection->places.data != nullptr;
    const Tensor& list = p.physical ? selection->places : selection->positions;
    p.positions = list.as<int32_t>();
    p.positions_stride = list.row_stride;
    p.counts = selection->counts.as<int32_t>();
  }
  p.parts = parts.device;
  p.part_of_row = parts.part_of_row;
  p.pages = latents;
  p.format = format;
  p.heads = static_cast<int>(q.dims[1]);
  p.width = static_cast<int>(q.dims[2]);
  p.values = static_cast<int>(latent_width);
  p.steps = (p.width + 15) / 16;
  p.stride = p.steps * 16 + 8;
  p.scale = static_cast<float>(scale * kLog2E);
  const bool aligned = reinterpret_cast<uintptr_t>(latents.base) % 16 == 0 && latents.row_bytes % 16 == 0 &&
                       latents.token_bytes % 16 == 0;
  const int rope = p.width - p.values;
  p.wide = aligned && p.width == p.steps * 16 && (format == LatentFormat::kNvfp4 ? p.values % 32 == 0 && rope % 16 == 0 : true);
  const size_t bytes = shared_bytes(p);
  const auto rows = static_cast<unsigned>(q.rows());
  const auto groups = static_cast<unsigned>((p.heads + kHeads - 1) / kHeads);
  const auto splits = static_cast<unsigned>(std::min<int64_t>(kBlocksWanted / (rows * groups), workspace.dims[1]));
  if (workspace.data == nullptr || q.rows() > workspace.rows() || splits < 2) {
    gpu::allow_shared(reinterpret_cast<const void*>(mla_kernel), bytes, "mla");
    mla_kernel<<<dim3(rows, groups), kThreads, bytes, gpu::stream_of(context)>>>(p);
  } else {
    p.partial = workspace.as<float>();
    p.units = static_cast<int>(workspace.dims[1]);
    gpu::allow_shared(reinterpret_cast<const void*>(mla_unit_kernel), bytes, "mla");
    mla_unit_kernel<<<dim3(rows, groups, splits), kThreads, bytes, gpu::stream_of(context)>>>(p);
    mla_join_kernel<<<dim3(rows, static_cast<unsigned>(p.heads)), kThreads, 0, gpu::stream_of(context)>>>(p);
  }
  gpu::check_launch("mla");
}

std::array<int64_t, 4> mla_workspace(int64_t rows, int64_t heads, int64_t latent_width, int64_t slots_max, int64_t bytes_max) {
  const int64_t units = std::max<int64_t>(std::min<int64_t>((slots_max + kSegment - 1) / kSegment, kStretch / kSegment),
                                          (slots_max + kStretch - 1) / kStretch);
  const int64_t groups = (heads + kHeads - 1) / kHeads;
  const int64_t row_bytes = std::max<int64_t>(units, 1) * heads * (latent_width + 2) * static_cast<int64_t>(sizeof(float));
  // More rows than this fill the GPU as they are.
  const int64_t useful = std::min<int64_t>(rows, kBlocksWanted / (2 * groups));
  return {std::min(useful, bytes_max / row_bytes), std::max<int64_t>(units, 1), heads, latent_width + 2};
}

}  // namespace perigee::ops::cuda
