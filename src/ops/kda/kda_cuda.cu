#include <cmath>

#include "ops/gpu_glu.cuh"
#include "ops/gpu_launch.h"
#include "ops/gpu_records.cuh"
#include "ops/kda/kda.h"

namespace perigee::ops::cuda {
namespace {

constexpr int kChunk = static_cast<int>(kKdaChunk);
constexpr int kKeysMax = static_cast<int>(kKdaGpuMax);
constexpr int kValuesMax = static_cast<int>(kKdaGpuMax);
constexpr int kSegment = 64;  // channels of one accumulator
constexpr int kPairStride = kChunk + 8;

// What one head keeps of the rows of its open chunk.
struct OpenLayout {
  int keys, values;
  __host__ __device__ int64_t k() const { return 0; }                                 // [16][K] bf16 as read
  __host__ __device__ int64_t inverse() const { return kChunk * 2 * keys; }           // [16] f32
  __host__ __device__ int64_t decay() const { return inverse() + kChunk * 4; }        // [16][K] f32
  __host__ __device__ int64_t solve() const { return decay() + kChunk * 4 * keys; }   // [16][16] f32, T
  __host__ __device__ int64_t x() const { return solve() + kChunk * kChunk * 4; }     // [16][V] f16
  __host__ __device__ int64_t bytes() const { return x() + kChunk * 2 * values; }
};

struct Rows {
  const bf16* data;
  int64_t stride;
};

struct Problem {
  Rows q, k, v, z, b;
  const float* a_log;
  const float* dt_bias;
  float* out;
  int64_t out_stride;
  const tensor::Part* parts;
  tensor::StatePlace state;
  tensor::SlotPlace open;
  OpenLayout layout;
  bool bounded;
  float lower_bound;
  float scale;  // K^-1/2
};

// Channels in rows of a chunk, in shared memory.
struct Shared {
  float k[kChunk][kKeysMax];      // normalised
  float q[kChunk][kKeysMax];
  float decay[kChunk][kKeysMax];
  float total[kKeysMax];          // D_15
  __half kd[kChunk][kKeysMax + 8];
  __half qd[kChunk][kKeysMax + 8];
  __half last[kKeysMax][kPairStride];  // d_c(15), by channel
  float a[kChunk][kChunk];        // A
  float m[kChunk][kChunk];        // M
  float solve[kChunk][kChunk];    // T
  __half solve_half[kChunk][kPairStride];
  __half w[kChunk][kPairStride];
  float beta[kChunk];
};

__device__ __half saturated(float x) {
  constexpr float kLargest = 65504.0f;
  return __float2half_rn(x > kLargest ? kLargest : x < -kLargest ? -kLargest : x);
}

__device__ uint32_t pack(float low, float high) {
  return static_cast<uint32_t>(__half_as_ushort(saturated(low))) | static_cast<uint32_t>(__half_as_ushort(saturated(high))) << 16;
}

__device__ float decay_of(const Problem& p, float z, float bias, float rate) {
  const float x = z + bias;
  float g;
  if (p.bounded) {
    g = p.lower_bound * gpu::fast_sigmoid(rate * x);
  } else {
    g = -rate * (fmaxf(x, 0.0f) + log1pf(gpu::fast_ex2(-fabsf(x) * gpu::kLog2E)));
  }
  return gpu::fast_ex2(g * gpu::kLog2E);
}

// 1 / length of a vector whose channels 4 lane .. 4 lane + 3 a lane holds.
__device__ float inverse_length(const float (&x)[4]) {
  float sum = 0;
  for (const float v : x) sum = fmaf(v, v, sum);
  for (int mask = 16; mask > 0; mask /= 2) sum = sum + gpu::lane_xor(sum, mask);
  return gpu::fast_rsqrt(sum + 1e-6f);
}

// A dot over the channels: chains of four, a tree over eight lanes, four sums upwards.
__device__ float dot(const float (&a)[4], const float (&b)[4]) {
  float sum = 0;
  for (int i = 0; i < 4; ++i) sum = fmaf(a[i], b[i], sum);
  for (int mask = 4; mask > 0; mask /= 2) sum = sum + gpu::lane_xor(sum, mask);
  float total = 0;
  for (int i = 0; i < 4; ++i) {
    const float part = gpu::lane_value(sum, i * 8);
    total = i == 0 ? part : total + part;
  }
  return total;
}

// The rows of one chunk that a call computes: [first, end) of the chunk, row `first` being row `row` of the step.
struct Chunk {
  int first, end;
  int64_t row;
  int head;
  uint8_t* open;  // of the head
  int keys, values;
};

__device__ void four(const bf16* from, int channel, int keys, float (&x)[4]) {
  for (int i = 0; i < 4; ++i) x[i] = channel + i < keys ? to_float(from[channel + i]) : 0.0f;
}

// k, q, decays and beta of all rows up to the chunk's end: earlier ones as kept, new ones from the inputs. A warp a row.
__device__ void load_rows(const Problem& p, const Chunk& c, Shared& s) {
  const int channel = threadIdx.x % 32 * 4;
  const float rate = gpu::fast_ex2(p.a_log[c.head] * gpu::kLog2E);
  auto* const open_k = reinterpret_cast<bf16*>(c.open + p.layout.k());
  auto* const open_inverse = reinterpret_cast<float*>(c.open + p.layout.inverse());
  auto* const open_decay = reinterpret_cast<float*>(c.open + p.layout.decay());
  for (int r = threadIdx.x / 32; r < kChunk; r += blockDim.x / 32) {
    float k[4] = {}, q[4] = {}, decay[4] = {};
    float inverse = 0;
    float beta = 0;
    const bool fresh = r >= c.first && r < c.end;
    if (fresh) {
      const int64_t row = c.row + r - c.first;
      const int64_t at = static_cast<int64_t>(c.head) * c.keys;
      four(p.k.data + row * p.k.stride + at, channel, c.keys, k);
      four(p.q.data + row * p.q.stride + at, channel, c.keys, q);
      float z[4];
      four(p.z.data + row * p.z.stride + at, channel, c.keys, z);
      for (int i = 0; i < 4 && channel + i < c.keys; ++i) decay[i] = decay_of(p, z[i], p.dt_bias[at + channel + i], rate);
      beta = gpu::fast_sigmoid(to_float(p.b.data[row * p.b.stride + c.head]));
    } else if (r < c.first) {
      four(open_k + r * c.keys, channel, c.keys, k);
      inverse = open_inverse[r];
      for (int i = 0; i < 4 && channel + i < c.keys; ++i) decay[i] = open_decay[r * c.keys + channel + i];
    }
    const float k_inverse = inverse_length(k);  // all lanes take part, whatever the row is
    const float q_inverse = inverse_length(q);
    if (fresh) {
      inverse = k_inverse;
      if (channel == 0) open_inverse[r] = inverse;
      for (int i = 0; i < 4 && channel + i < c.keys; ++i) {
        open_k[r * c.keys + channel + i] = to_bf16(k[i]);
        open_decay[r * c.keys + channel + i] = decay[i];
      }
    }
    for (int i = 0; i < 4; ++i) {
      s.k[r][channel + i] = k[i] * inverse;
      s.q[r][channel + i] = q[i] * q_inverse;
      s.decay[r][channel + i] = decay[i];
    }
    if (channel == 0) s.beta[r] = beta;
  }
}

// D_r, and with it the operands of the products with the state. A thread a channel.
__device__ void accumulate_decays(const Chunk& c, Shared& s) {
  for (int i = threadIdx.x; i < kKeysMax; i += blockDim.x) {
    float total = 1.0f;
    for (int r = 0; r < kChunk; ++r) {
      const bool fresh = r >= c.first && r < c.end;
      if (r < c.end) total = total * s.decay[r][i];
      s.kd[r][i] = saturated(fresh ? s.k[r][i] * total : 0.0f);
      s.qd[r][i] = saturated(fresh ? s.q[r][i] * total : 0.0f);
    }
    s.total[i] = total;
  }
}

// A and M of the new rows, and d_c(15) if the chunk is full. A warp a column c; d_c(r) grows from left to right.
__device__ void pairs(const Chunk& c, Shared& s) {
  const int channel = threadIdx.x % 32 * 4;
  for (int column = threadIdx.x / 32; column < c.end; column += blockDim.x / 32) {
    float d[4];
    for (int i = 0; i < 4; ++i) d[i] = s.k[column][channel + i];
    for (int r = column; r < c.end; ++r) {
      for (int i = 0; i < 4 && r > column; ++i) d[i] = d[i] * s.decay[r][channel + i];
      if (r < c.first) continue;
      float k[4], q[4];
      for (int i = 0; i < 4; ++i) {
        k[i] = s.k[r][channel + i];
        q[i] = s.q[r][channel + i];
      }
      const float a = dot(k, d);
      const float m = dot(q, d);
      if (channel == 0) {
        s.a[r][column] = a;
        s.m[r][column] = m;
      }
    }
    if (c.end == kChunk) {
      for (int i = 0; i < 4; ++i) s.last[channel + i][column] = saturated(d[i]);
    }
  }
}

// T and W of the new rows, one after the other. The first 16 threads, a column each.
__device__ void solve(const Problem& p, const Chunk& c, Shared& s) {
  auto* const kept = reinterpret_cast<float*>(c.open + p.layout.solve());
  const int column = threadIdx.x;
  if (column >= kChunk) return;
  for (int r = 0; r < kChunk; ++r) {
    float t = 0;
    float w = 0;
    if (r < c.first) {
      t = kept[r * kChunk + column];
    } else if (r < c.end && column <= r) {
      float sum = 0;
      for (int j = column; j < r; ++j) sum = fmaf(s.a[r][j], s.solve[j][column], sum);
      t = column == r ? 1.0f : -s.beta[r] * sum;
      s.solve[r][column] = t;
      for (int j = column; j <= r; ++j) w = fmaf(s.m[r][j], s.solve[j][column], w);
    }
    s.solve[r][column] = t;
    if (r >= c.first && r < c.end) kept[r * kChunk + column] = t;
    s.solve_half[r][column] = saturated(t);
    s.w[r][column] = saturated(w);
  }
}

// 16 value columns of a head by one warp: S^T in accumulator layout, tile i holding channels 8 i .. 8 i + 7.
template <int kKeyTiles>
struct State {
  float s[kKeyTiles][4];
  float4* place;

  __device__ void load(float4* at) {
    place = at;
#pragma unroll
    for (int i = 0; i < kKeyTiles; ++i) {
      const float4 f = at[i * 32];
      s[i][0] = f.x, s[i][1] = f.y, s[i][2] = f.z, s[i][3] = f.w;
    }
  }
  __device__ void store() const {
#pragma unroll
    for (int i = 0; i < kKeyTiles; ++i) place[i * 32] = {s[i][0], s[i][1], s[i][2], s[i][3]};
  }
  // rows . S for eight rows, two segments.
  __device__ void times(const __half (*rows)[kKeysMax + 8], int tile, float (&out)[4]) const {
    const int lane = threadIdx.x % 32;
    const __half* const from = rows[tile * 8 + lane / 4] + lane % 4 * 2;
    float acc[4] = {};
#pragma unroll
    for (int k = 0; k < kKeyTiles / 2; ++k) {
      if (k == kSegment / 16) {
        for (int i = 0; i < 4; ++i) {
          out[i] = acc[i];
          acc[i] = 0;
        }
      }
      const float(&low)[4] = s[2 * k];
      const float(&high)[4] = s[2 * k + 1];
      const uint32_t a[4] = {pack(low[0], low[1]), pack(low[2], low[3]), pack(high[0], high[1]), pack(high[2], high[3])};
      const uint32_t b[2] = {gpu::operand(from + k * 16), gpu::operand(from + k * 16 + 8)};
      gpu::mma_fp16(acc, a, b);
    }
    for (int i = 0; i < 4; ++i) out[i] = kKeyTiles * 8 > kSegment ? out[i] + acc[i] : acc[i];
  }
  // S <- D_15 S + d(15)^T u.
  __device__ void advance(const Shared& sh, const uint32_t (&u)[4]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kKeyTiles; ++i) {
      const __half* const from = sh.last[i * 8 + lane / 4] + lane % 4 * 2;
      const uint32_t b[2] = {gpu::operand(from), gpu::operand(from + 8)};
      float acc[4] = {};
      gpu::mma_fp16(acc, u, b);
      for (int j = 0; j < 4; ++j) s[i][j] = fmaf(sh.total[i * 8 + lane % 4 * 2 + j % 2], s[i][j], acc[j]);
    }
  }
};

// x, outputs and, for a full chunk, the next state.
template <int kKeyTiles>
__device__ void values(const Problem& p, const Chunk& c, Shared& s, State<kKeyTiles>& state) {
  const int lane = threadIdx.x % 32;
  const int column = threadIdx.x / 32 * 16 + lane / 4;  // of values; the lane also has column + 8
  auto* const kept = reinterpret_cast<__half*>(c.open + p.layout.x());
  const int64_t at = static_cast<int64_t>(c.head) * c.values;
  float x[2][4];
  for (int tile = 0; tile < 2; ++tile) {
    float found[4];
    state.times(s.kd, tile, found);
    for (int i = 0; i < 4; ++i) {
      const int r = tile * 8 + lane % 4 * 2 + i % 2;
      const int v = column + i / 2 * 8;
      float value = 0;
      if (r >= c.first && r < c.end) {
        const float given = to_float(p.v.data[(c.row + r - c.first) * p.v.stride + at + v]);
        const __half half = saturated(s.beta[r] * (given - found[i]));
        kept[r * c.values + v] = half;
        value = __half2float(half);
      } else if (r < c.first) {
        value = __half2float(kept[r * c.values + v]);
      }
      x[tile][i] = value;
    }
  }
  const uint32_t operand[4] = {pack(x[0][0], x[0][1]), pack(x[0][2], x[0][3]), pack(x[1][0], x[1][1]), pack(x[1][2], x[1][3])};
  float u[2][4] = {};
  for (int tile = 0; tile < 2; ++tile) {
    float out[4];
    state.times(s.qd, tile, out);
    const __half* const w = s.w[tile * 8 + lane / 4] + lane % 4 * 2;
    const uint32_t weights[2] = {gpu::operand(w), gpu::operand(w + 8)};
    gpu::mma_fp16(out, operand, weights);
    for (int i = 0; i < 4; ++i) {
      const int r = tile * 8 + lane % 4 * 2 + i % 2;
      if (r < c.first || r >= c.end) continue;
      p.out[(c.row + r - c.first) * p.out_stride + at + column + i / 2 * 8] = out[i] * p.scale;
    }
    const __half* const t = s.solve_half[tile * 8 + lane / 4] + lane % 4 * 2;
    const uint32_t solved[2] = {gpu::operand(t), gpu::operand(t + 8)};
    gpu::mma_fp16(u[tile], operand, solved);
  }
  if (c.end != kChunk) return;
  const uint32_t update[4] = {pack(u[0][0], u[0][1]), pack(u[0][2], u[0][3]), pack(u[1][0], u[1][1]), pack(u[1][2], u[1][3])};
  state.advance(s, update);
}

// A block has one head of one part and walks over the part's chunks; a warp has 16 value columns.
template <int kKeyTiles>
__global__ void __launch_bounds__(kValuesMax * 2) kda_kernel(const __grid_constant__ Problem p) {
  extern __shared__ __align__(16) uint8_t memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory);
  const tensor::Part& part = p.parts[blockIdx.x];
  if (part.rows == 0) return;
  const int head = blockIdx.y;
  const int lane = threadIdx.x % 32;
  auto* const states = reinterpret_cast<float4*>(p.state.of(part));
  State<kKeyTiles> state;
  state.load(states + (static_cast<int64_t>(head) * (p.layout.values / 16) + threadIdx.x / 32) * kKeyTiles * 32 + lane);
  uint8_t* const open = reinterpret_cast<uint8_t*>(p.open.of(part)) + head * p.layout.bytes();
  bool moved = false;
  for (int64_t done = 0; done < part.rows;) {
    const int first = static_cast<int>((part.position + done) % kChunk);
    const int end = static_cast<int>(min(static_cast<int64_t>(kChunk), first + part.rows - done));
    const Chunk c = {first, end, part.row_begin + done, head, open, p.layout.keys, p.layout.values};
    load_rows(p, c, s);
    __syncthreads();
    accumulate_decays(c, s);
    pairs(c, s);
    __syncthreads();
    solve(p, c, s);
    __syncthreads();
    values(p, c, s, state);
    moved = moved || end == kChunk;
    done += end - first;
    __syncthreads();
  }
  if (moved) state.store();
}

template <int kKeyTiles>
void launch(const Context& context, const Problem& p, int64_t heads, size_t parts) {
  gpu::allow_shared(reinterpret_cast<const void*>(kda_kernel<kKeyTiles>), sizeof(Shared), "kda");
  const dim3 grid(static_cast<unsigned>(parts), static_cast<unsigned>(heads));
  kda_kernel<kKeyTiles><<<grid, p.layout.values * 2, sizeof(Shared), gpu::stream_of(context)>>>(p);
  gpu::check_launch("kda");
}

}  // namespace

int64_t kda_open_bytes(const KdaParams& params) {
  const OpenLayout layout = {static_cast<int>(params.key_dim), static_cast<int>(params.value_dim)};
  return params.heads * layout.bytes();
}

void kda(const Context& context, const KdaInputs& in, const KdaParams& params, const tensor::Parts& parts,
         const tensor::StatePlace& state, const tensor::SlotPlace& open, const Tensor& out) {
  if (parts.host.empty() || out.size() == 0) return;
  CHECK(params.key_dim % kKdaGpuMultiple == 0 && params.key_dim <= kKeysMax);
  CHECK(params.value_dim % kKdaGpuMultiple == 0 && params.value_dim <= kValuesMax);
  const auto rows = [](const Tensor& t) { return Rows{t.as<bf16>(), t.row_stride}; };
  Problem p = {};
  p.q = rows(in.q);
  p.k = rows(in.k);
  p.v = rows(in.v);
  p.z = rows(in.z);
  p.b = rows(in.b);
  p.a_log = in.a_log.as<float>();
  p.dt_bias = in.dt_bias.as<float>();
  p.out = out.as<float>();
  p.out_stride = out.row_stride;
  p.parts = parts.device;
  p.state = state;
  p.open = open;
  p.layout = {static_cast<int>(params.key_dim), static_cast<int>(params.value_dim)};
  p.bounded = params.lower_bound.has_value();
  p.lower_bound = static_cast<float>(params.lower_bound.value_or(0));
  p.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(params.key_dim)));
  const size_t count = parts.host.size();
  switch (params.key_dim / 16) {
    case 1: return launch<2>(context, p, params.heads, count);
    case 2: return launch<4>(context, p, params.heads, count);
    case 3: return launch<6>(context, p, params.heads, count);
    case 4: return launch<8>(context, p, params.heads, count);
    case 5: return launch<10>(context, p, params.heads, count);
    case 6: return launch<12>(context, p, params.heads, count);
    case 7: return launch<14>(context, p, params.heads, count);
    default: return launch<16>(context, p, params.heads, count);
  }
}

}  // namespace perigee::ops::cuda
