#include "ops/conv1d/conv1d.h"
#include "ops/gpu_glu.cuh"
#include "ops/gpu_launch.h"
#include "ops/gpu_records.cuh"

namespace perigee::ops::cuda {
namespace {

constexpr int kThreads = 128;

struct Problem {
  const bf16* x;
  int64_t x_stride;
  const float* weight;
  bf16* out;
  int64_t out_stride;
  int64_t channels;
  int width;
  const tensor::Part* parts;
  const int32_t* part_of_row;
  tensor::StatePlace window;
  tensor::SlotPlace open;
};

// Inputs of one channel around a part: index 0 is the start of the chunk that was open before the call.
struct History {
  bf16* window;
  bf16* open;
  const bf16* x;
  int64_t stride;
  int64_t x_stride;
  int64_t before;  // rows of the open chunk
  int width;

  __device__ History(const Problem& p, const tensor::Part& part, int64_t channel)
      : window(nullptr), open(nullptr), x(p.x + part.row_begin * p.x_stride + channel), stride(p.channels), x_stride(p.x_stride),
        before(0), width(p.width) {
    if (width == 1) return;
    window = reinterpret_cast<bf16*>(p.window.of(part)) + channel;
    open = reinterpret_cast<bf16*>(p.open.of(part)) + channel;
    before = part.position % kConvChunk;
  }
  __device__ bf16 at(int64_t i) const {
    if (i < 0) return window[(width - 1 + i) * stride];
    return i < before ? open[i * stride] : x[(i - before) * x_stride];
  }
};

// A thread a row and channel.
__global__ void __launch_bounds__(kThreads) conv_kernel(const __grid_constant__ Problem p) {
  const int64_t row = blockIdx.x;
  const int64_t channel = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  const gpu::Place place = gpu::place_of(p.parts, p.part_of_row, row);
  if (channel >= p.channels || place.part == nullptr) return;
  const History h(p, *place.part, channel);
  const int64_t index = h.before + row - place.part->row_begin;
  float y = 0;
  for (int j = 0; j < p.width; ++j) y = fmaf(p.weight[channel * p.width + j], to_float(h.at(index - (p.width - 1) + j)), y);
  p.out[row * p.out_stride + channel] = to_bf16(gpu::silu(y));
}

// Moves on to the chunk that is open after the rows, once all of them have been read. What the window takes lies in the old open
// chunk or in the rows, what the open chunk takes lies in the rows.
__global__ void __launch_bounds__(kThreads) advance_kernel(const __grid_constant__ Problem p) {
  const tensor::Part& part = p.parts[blockIdx.x];
  const int64_t channel = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (channel >= p.channels || part.rows == 0) return;
  const History h(p, part, channel);
  const int64_t shift = (h.before + part.rows) / kConvChunk * kConvChunk;
  for (int i = 0; shift > 0 && i < p.width - 1; ++i) h.window[i * h.stride] = h.at(shift - (p.width - 1) + i);
  for (int64_t i = shift > 0 ? 0 : h.before; i < h.before + part.rows - shift; ++i) h.open[i * h.stride] = h.at(shift + i);
}

}  // namespace

void causal_conv1d(const Context& context, const Tensor& x, const Tensor& weight, const tensor::Parts& parts,
                   const tensor::StatePlace& window, const tensor::SlotPlace& open, const Tensor& out) {
  if (x.size() == 0 || parts.host.empty()) return;
  const Problem p = {x.as<bf16>(), x.row_stride, weight.as<float>(), out.as<bf16>(), out.row_stride, x.dims[1],
                     static_cast<int>(weight.dims[1]), parts.device, parts.part_of_row, window, open};
  const auto blocks = static_cast<unsigned>((p.channels + kThreads - 1) / kThreads);
  conv_kernel<<<dim3(static_cast<unsigned>(x.rows()), blocks), kThreads, 0, gpu::stream_of(context)>>>(p);
  gpu::check_launch("causal_conv1d");
  if (p.width == 1) return;
  advance_kernel<<<dim3(static_cast<unsigned>(parts.host.size()), blocks), kThreads, 0, gpu::stream_of(context)>>>(p);
  gpu::check_launch("causal_conv1d");
}

}  // namespace perigee::ops::cuda
