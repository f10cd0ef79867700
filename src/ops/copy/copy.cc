#include "ops/copy/copy.h"

#include <cstring>

namespace perigee::ops {

void copy(const Context& context, std::span<const CopyItem> items) {
  if (items.empty()) return;
  const int64_t rows = items[0].x.rows();
  for (const CopyItem& item : items) {
    CHECK_EQ(item.x.rows(), rows);
    tensor::expect(item.out, "copy out", item.x.dtype, {rows, item.x.row_size()});
  }
  if (context.device == tensor::Device::kCuda) {
    CHECK(kCudaBuilt);
    if constexpr (kCudaBuilt) cuda::copy(context, items);
    return;
  }
  context.pool->parallel_for(rows, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (const CopyItem& item : items) {
        const int64_t bytes = tensor::dtype_bytes(item.x.dtype);
        std::memcpy(static_cast<std::byte*>(item.out.data) + t * item.out.row_stride * bytes,
                    static_cast<const std::byte*>(item.x.data) + t * item.x.row_stride * bytes,
                    static_cast<size_t>(item.x.row_size() * bytes));
      }
    }
  });
}

}  // namespace perigee::ops
