#include "ops/embed/embed.h"
#include "ops/gpu_launch.h"

namespace perigee::ops::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    embed_kernel(const int32_t* ids, const bf16* table, int64_t table_stride, int64_t width, bf16* out, int64_t out_stride) {
  const bf16* const from = table + ids[blockIdx.x] * table_stride;
  bf16* const to = out + blockIdx.x * out_stride;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) to[i] = from[i];
}

}  // namespace

void embed(const Context& context, const Tensor& ids, const Tensor& table, const Tensor& out) {
  if (out.size() == 0) return;
  embed_kernel<<<static_cast<unsigned>(out.rows()), kThreads, 0, gpu::stream_of(context)>>>(
      ids.as<int32_t>(), table.as<bf16>(), table.row_stride, out.dims[1], out.as<bf16>(), out.row_stride);
  gpu::check_launch("embed");
}

}  // namespace perigee::ops::cuda
