#include <algorithm>

#include "ops/copy/copy.h"
#include "ops/gpu_launch.h"

namespace perigee::ops::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kItemsMax = 64;  // of a launch: kernel parameters hold 4 KB

// Everything in units of the elements' own size.
struct Item {
  const void* x;
  void* out;
  int64_t x_stride;
  int64_t out_stride;
  int64_t width;
};

struct Items {
  Item item[kItemsMax];
};

template <class T>
__global__ void __launch_bounds__(kThreads) copy_kernel(const __grid_constant__ Items items) {
  const Item& item = items.item[blockIdx.y];
  const int64_t row = blockIdx.x;
  const T* const from = static_cast<const T*>(item.x) + row * item.x_stride;
  T* const to = static_cast<T*>(item.out) + row * item.out_stride;
  for (int64_t i = threadIdx.x; i < item.width; i += kThreads) to[i] = from[i];
}

}  // namespace

void copy(const Context& context, std::span<const CopyItem> items) {
  const int64_t rows = items[0].x.rows();
  if (rows == 0) return;
  while (!items.empty()) {
    const size_t count = std::min<size_t>(items.size(), kItemsMax);
    Items now;
    for (size_t i = 0; i < count; ++i) {
      const CopyItem& c = items[i];
      CHECK_EQ(tensor::dtype_bytes(c.x.dtype), tensor::dtype_bytes(items[0].x.dtype));
      now.item[i] = {c.x.data, c.out.data, c.x.row_stride, c.out.row_stride, c.x.row_size()};
    }
    const dim3 grid(static_cast<unsigned>(rows), static_cast<unsigned>(count));
    switch (tensor::dtype_bytes(items[0].x.dtype)) {
      case 1: copy_kernel<uint8_t><<<grid, kThreads, 0, gpu::stream_of(context)>>>(now); break;
      case 2: copy_kernel<uint16_t><<<grid, kThreads, 0, gpu::stream_of(context)>>>(now); break;
      case 4: copy_kernel<uint32_t><<<grid, kThreads, 0, gpu::stream_of(context)>>>(now); break;
      default: copy_kernel<uint64_t><<<grid, kThreads, 0, gpu::stream_of(context)>>>(now); break;
    }
    gpu::check_launch("copy");
    items = items.subspan(count);
  }
}

}  // namespace perigee::ops::cuda
