#include "ops/moe_permute/moe_permute.h"

#include <algorithm>

#include "base/check.h"

namespace perigee::ops {

using tensor::Device;
using tensor::DType;

// Integers in host memory: the reference and the CPU do the same.
void moe_permute(const Context& context, const Tensor& ids, int64_t experts, const Tensor& offsets,
                 const Tensor& source, const Tensor& place) {
  tensor::expect(ids, "ids of moe_permute", DType::kI32, {-1, -1});
  const int64_t tokens = ids.rows();
  const int64_t active = ids.dims[1];
  tensor::expect(offsets, "offsets of moe_permute", DType::kI32, {experts + 1});
  tensor::expect(source, "source of moe_permute", DType::kI32, {tokens * active});
  tensor::expect(place, "place of moe_permute", DType::kI32, {tokens, active});
  CHECK_LT(tokens * active, int64_t{1} << 31);
  if (context.device == Device::kCuda) {
    CHECK(kCudaBuilt);
    if constexpr (kCudaBuilt) cuda::moe_permute(context, ids, experts, offsets, source, place);
    return;
  }

  auto* const start = offsets.as<int32_t>();
  std::fill(start, start + experts + 1, 0);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t a = 0; a < active; ++a) {
      const int32_t id = ids.row<int32_t>(t)[a];
      CHECK(id >= 0 && id < experts);
      ++start[id + 1];
    }
  }
  for (int64_t e = 0; e < experts; ++e) start[e + 1] += start[e];
  // Filling moves each start to its expert's end, which is the next one's start: shift back afterwards.
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t a = 0; a < active; ++a) {
      const int32_t at = start[ids.row<int32_t>(t)[a]]++;
      source.as<int32_t>()[at] = static_cast<int32_t>(t);
      place.row<int32_t>(t)[a] = at;
    }
  }
  for (int64_t e = experts; e > 0; --e) start[e] = start[e - 1];
  start[0] = 0;
}

void moe_combine(const Context& context, const Tensor& y, const Tensor& place,
                 const Tensor& weights, const Tensor& out) {
  const DType real = real_dtype(context.device);
  tensor::expect(place, "place of moe_combine", DType::kI32, {-1, -1});
  const int64_t tokens = place.rows();
  const int64_t active = place.dims[1];
  tensor::expect(y, "y of moe_combine", real, {tokens * active, -1});
  tensor::expect(weights, "weights of moe_combine", real, {tokens, active});
  tensor::expect(out, "out of moe_combine", activation_dtype(context.device), {tokens, y.dims[1]});
  switch (context.device) {
    case Device::kReference:
      return ref::moe_combine(context, y, place, weights, out);
    case Device::kCpu:
      return cpu::moe_combine(context, y, place, weights, out);
    case Device::kCuda:
      if constexpr (kCudaBuilt) return cuda::moe_combine(context, y, place, weights, out);
      break;
  }
  CHECK(!"this device has no moe_combine");
}

}  // namespace perigee::ops
