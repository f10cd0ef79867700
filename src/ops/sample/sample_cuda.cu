#include <limits>

#include "ops/gpu_exact.cuh"
#include "ops/gpu_lanes.cuh"
#include "ops/gpu_launch.h"
#include "ops/sample/sample_gpu.h"

namespace perigee::ops::cuda {
namespace {

constexpr int kSplit = 1024;  // columns whose sum is formed alone (docs/numerics.md N8)
constexpr int kChains = 16;   // of a split's sum; half a warp has a split
constexpr int kThreads = 256;
constexpr float kLargest = std::numeric_limits<float>::max();

__device__ float lowest() { return float_from_bits(0xff800000u); }

// NaN counts as -inf, +inf as the largest number.
__device__ float logit(float x) {
  if (x != x) return lowest();
  return flush_denormal(fminf(x, kLargest));
}

// Orders as (logit, lower id first) does.
__device__ uint64_t rank_of(float x, int id) {
  const uint32_t u = float_bits(x + 0.0f);
  const uint32_t key = (u & 0x80000000u) != 0 ? ~u : u | 0x80000000u;
  return static_cast<uint64_t>(key) << 32 | ~static_cast<uint32_t>(id);
}
__device__ int id_of(uint64_t rank) { return static_cast<int>(~static_cast<uint32_t>(rank)); }

template <class T>
__device__ T half_warp_largest(T x) {
  for (int mask = kChains / 2; mask > 0; mask /= 2) {
    const T other = gpu::lane_xor(x, mask);
    x = other > x ? other : x;
  }
  return x;
}

// Largest value of a split, the sum of exp(value - largest), and the best entry by some rank.
struct Part {
  float max;
  float sum;
  uint64_t best;
};

struct Problem {
  const float* logits;
  int64_t stride;
  int width;
  int splits;
  int64_t rows;
  Part* parts;  // [rows][splits]
};

// The sum over a split of exp(value(column) - largest), in the order of the host; `largest` is a number.
template <class Value>
__device__ float split_sum(int columns, float largest, Value&& value) {
  float sum = 0;
  for (int i = threadIdx.x % kChains; i < columns; i += kChains) {
    sum = sum + gpu::exact_exp(flush_denormal(value(i) - largest));
  }
  for (int mask = kChains / 2; mask > 0; mask /= 2) sum = sum + gpu::lane_xor(sum, mask);
  return sum;
}

// The split of this half warp: its row, first column and columns; false beyond the rows.
struct Place {
  int64_t row;
  int split, first, columns;
  bool real;
};

__device__ Place place_of(const Problem& p) {
  const int64_t item = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kChains;
  const int64_t row = item / p.splits;
  const auto split = static_cast<int>(item % p.splits);
  const int first = split * kSplit;
  return {row, split, first, min(kSplit, p.width - first), row < p.rows};
}

__global__ void __launch_bounds__(kThreads) sum_kernel(const __grid_constant__ Problem p) {
  Place at = place_of(p);
  if (!at.real) at.columns = 0;
  const float* const x = p.logits + at.row * p.stride + at.first;
  uint64_t best = 0;
  for (int i = threadIdx.x % kChains; i < at.columns; i += kChains) best = max(best, rank_of(logit(x[i]), at.first + i));
  best = half_warp_largest(best);
  const float largest = at.columns > 0 ? logit(x[id_of(best) - at.first]) : lowest();
  // The lanes of a warp stay together: an empty split adds nothing.
  const float sum = split_sum(at.columns, largest == lowest() ? 0.0f : largest, [&](int i) { return logit(x[i]); });
  if (at.real && threadIdx.x % kChains == 0) p.parts[at.row * p.splits + at.split] = {largest, sum, best};
}

// ln of the whole sum of a row by one warp, splits in ascending order, and the best entry.
__device__ float join(const Part* parts, int splits, uint64_t& best) {
  const int lane = threadIdx.x % gpu::kLanes;
  float largest = lowest();
  best = 0;
  for (int i = lane; i < splits; i += gpu::kLanes) {
    largest = fmaxf(largest, parts[i].max);
    best = max(best, parts[i].best);
  }
  for (int mask = gpu::kLanes / 2; mask > 0; mask /= 2) {
    largest = fmaxf(largest, gpu::lane_xor(largest, mask));
    best = max(best, gpu::lane_xor(best, mask));
  }
  if (largest == lowest()) return largest;
  float sum = 0;
  for (int first = 0; first < splits; first += gpu::kLanes) {
    const int i = first + lane;
    const float term = i < splits ? flush_denormal(parts[i].sum * gpu::exact_exp(flush_denormal(parts[i].max - largest))) : 0.0f;
    for (int n = 0; n < min(gpu::kLanes, splits - first); ++n) sum = sum + gpu::lane_value(term, n);
  }
  return flush_denormal(largest + gpu::exact_log(sum));
}

__global__ void __launch_bounds__(kThreads) join_kernel(const __grid_constant__ Problem p, float* out) {
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / gpu::kLanes;
  if (row >= p.rows) return;
  uint64_t best;
  const float sum = join(p.parts + row * p.splits, p.splits, best);
  if (threadIdx.x % gpu::kLanes != 0) return;
  out[row] = sum;
  p.parts[p.rows * p.splits + row].best = best;  // of the whole row
}

__device__ float negative(float x) { return 0.0f - x; }

// -ln(-ln(1 - v)) for v in (0, 1): the logarithm of the rounded 1 - v, corrected for that rounding (Kahan).
__device__ float noise_of(float v) {
  const float w = 1.0f - v;
  const float gone = 1.0f - w;
  const float draw = 0.0f < gone ? negative(flush_denormal(gpu::exact_log(w) * (v / gone))) : v;
  return negative(gpu::exact_log(draw));
}

struct Draws {
  const DrawKey* keys;
  const float* lse;
  Drawn* out;
};

__device__ float largest_of_row(const Problem& p, int64_t row) {
  return logit(p.logits[row * p.stride + id_of(p.parts[p.rows * p.splits + row].best)]);
}

// Of the scaled logits of a split: their sum as above, and the winner of logits and noise.
__global__ void __launch_bounds__(kThreads) noise_kernel(const __grid_constant__ Problem p, const __grid_constant__ Draws d) {
  Place at = place_of(p);
  const DrawKey key = at.real ? d.keys[at.row] : DrawKey{};
  const float top = at.real ? largest_of_row(p, at.row) : 0.0f;
  if (!at.real || key.factor <= 0) at.columns = 0;
  const float* const x = p.logits + at.row * p.stride + at.first;
  const auto scaled = [&](int i) { return flush_denormal(flush_denormal(logit(x[i]) - top) * key.factor); };
  float largest = lowest();
  uint64_t best = 0;
  for (int i = threadIdx.x % kChains; i < at.columns; i += kChains) {
    const float y = scaled(i);
    const int id = at.first + i;
    largest = fmaxf(largest, y);
    best = max(best, rank_of(flush_denormal(y + noise_of(sample_uniform(key.noise, id))), id));
  }
  largest = half_warp_largest(largest);
  best = half_warp_largest(best);
  const float sum = split_sum(at.columns, largest == lowest() ? 0.0f : largest, scaled);
  if (at.real && threadIdx.x % kChains == 0) p.parts[at.row * p.splits + at.split] = {largest, sum, best};
}

__global__ void __launch_bounds__(kThreads) draw_kernel(const __grid_constant__ Problem p, const __grid_constant__ Draws d) {
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / gpu::kLanes;
  if (row >= p.rows) return;
  const DrawKey key = d.keys[row];
  if (key.factor < 0) return;
  const float top = largest_of_row(p, row);
  uint64_t best = p.parts[p.rows * p.splits + row].best;
  float processed = 0;
  if (key.factor > 0 && top > lowest()) {
    const float sum = join(p.parts + row * p.splits, p.splits, best);
    const float x = logit(p.logits[row * p.stride + id_of(best)]);
    processed = flush_denormal(flush_denormal(flush_denormal(x - top) * key.factor) - sum);
  }
  if (threadIdx.x % gpu::kLanes != 0) return;
  if (top == lowest()) {
    d.out[row] = {0, lowest(), lowest()};
  } else {
    const float x = logit(p.logits[row * p.stride + id_of(best)]);
    d.out[row] = {id_of(best), flush_denormal(x - d.lse[row]), processed};
  }
}

__global__ void __launch_bounds__(kThreads)
    token_kernel(const float* logits, int64_t stride, const float* lse, const int32_t* ids, int64_t rows, float* out) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (row < rows) out[row] = ids[row] >= 0 ? flush_denormal(logits[row * stride + ids[row]] - lse[row]) : 0.0f;
}

Problem problem(const Tensor& logits, void* workspace) {
  const int64_t width = logits.dims[1];
  return {logits.as<float>(), logits.row_stride, static_cast<int>(width), static_cast<int>((width + kSplit - 1) / kSplit),
          logits.rows(), static_cast<Part*>(workspace)};
}

unsigned blocks(int64_t threads) { return static_cast<unsigned>((threads + kThreads - 1) / kThreads); }

}  // namespace

int64_t sample_workspace_bytes(int64_t rows, int64_t width) {
  return rows * ((width + kSplit - 1) / kSplit + 1) * static_cast<int64_t>(sizeof(Part));
}

void log_sum_exp(const Context& context, const Tensor& logits, void* workspace, const Tensor& out) {
  tensor::expect(logits, "logits", tensor::DType::kF32, {-1, -1});
  tensor::expect(out, "out", tensor::DType::kF32, {logits.rows()});
  if (logits.size() == 0) return;
  const Problem p = problem(logits, workspace);
  sum_kernel<<<blocks(p.rows * p.splits * kChains), kThreads, 0, gpu::stream_of(context)>>>(p);
  join_kernel<<<blocks(p.rows * gpu::kLanes), kThreads, 0, gpu::stream_of(context)>>>(p, out.as<float>());
  gpu::check_launch("log_sum_exp");
}

void draw(const Context& context, const Tensor& logits, const Tensor& lse, const DrawKey* keys, void* workspace, Drawn* drawn) {
  tensor::expect(logits, "logits", tensor::DType::kF32, {-1, -1});
  tensor::expect(lse, "lse", tensor::DType::kF32, {logits.rows()});
  if (logits.size() == 0) return;
  const Problem p = problem(logits, workspace);
  const Draws d = {keys, lse.as<float>(), drawn};
  noise_kernel<<<blocks(p.rows * p.splits * kChains), kThreads, 0, gpu::stream_of(context)>>>(p, d);
  draw_kernel<<<blocks(p.rows * gpu::kLanes), kThreads, 0, gpu::stream_of(context)>>>(p, d);
  gpu::check_launch("draw");
}

void token_logprobs(const Context& context, const Tensor& logits, const Tensor& lse, const Tensor& ids, const Tensor& out) {
  tensor::expect(logits, "logits", tensor::DType::kF32, {-1, -1});
  tensor::expect(ids, "ids", tensor::DType::kI32, {logits.rows()});
  tensor::expect(out, "out", tensor::DType::kF32, {logits.rows()});
  if (logits.size() == 0) return;
  token_kernel<<<blocks(logits.rows()), kThreads, 0, gpu::stream_of(context)>>>(
      logits.as<float>(), logits.row_stride, lse.as<float>(), ids.as<int32_t>(), logits.rows(), out.as<float>());
  gpu::check_launch("token_logprobs");
}

}  // namespace perigee::ops::cuda
