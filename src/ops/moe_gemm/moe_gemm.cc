#include "ops/moe_gemm/moe_gemm.h"

#include <cstring>

#include "base/check.h"

namespace perigee::ops {

using tensor::Device;
using tensor::DType;
using tensor::WeightLayout;

namespace {

constexpr int64_t kPanel = 16;
constexpr int64_t kScaleColumns = 32;
constexpr int64_t kBlockCodes = kPanel * kScaleColumns / 2;
constexpr uint8_t kScaleOne = 127;  // padding rows: a scale that keeps every fast path open

bool layout_fits(Device device, WeightLayout layout) {
  return device == Device::kReference
             ? layout == WeightLayout::kRowMajorMxfp4 || layout == WeightLayout::kRowMajorBf16
             : layout == WeightLayout::kTiledMxfp4 || layout == WeightLayout::kTiledBf16;
}

}  // namespace

int64_t moe_packed_bytes(int64_t n, int64_t k) {
  CHECK_EQ(k % kScaleColumns, 0);
  return (n + kPanel - 1) / kPanel * (k / kScaleColumns) * (kBlockCodes + kPanel);
}

void moe_pack_mxfp4(const uint8_t* codes, const uint8_t* scales, int64_t row_count, int64_t k,
                    void* packed, int64_t n_total, int64_t row_offset) {
  CHECK_EQ(k % kScaleColumns, 0);
  CHECK(row_count >= 0 && row_offset >= 0 && row_offset + row_count <= n_total);
  const int64_t blocks = k / kScaleColumns;
  const int64_t panel_bytes = blocks * (kBlockCodes + kPanel);
  const bool last = row_count > 0 && row_offset + row_count == n_total;
  const int64_t end = last ? (n_total + kPanel - 1) / kPanel * kPanel : row_offset + row_count;
  for (int64_t n = row_offset; n < end; ++n) {
    uint8_t* const panel = static_cast<uint8_t*>(packed) + n / kPanel * panel_bytes;
    uint8_t* const to = panel + n % kPanel * 4;
    uint8_t* const to_scales = panel + blocks * kBlockCodes + n % kPanel;
    const int64_t r = n - row_offset;
    for (int64_t i = 0; i < k / 8; ++i) {
      if (n < n_total) {
        std::memcpy(to + i * kPanel * 4, codes + r * (k / 2) + i * 4, 4);
      } else {
        std::memset(to + i * kPanel * 4, 0, 4);
      }
    }
    for (int64_t b = 0; b < blocks; ++b) {
      to_scales[b * kPanel] = n < n_total ? scales[r * blocks + b] : kScaleOne;
    }
  }
}

void moe_gemm(const Context& context, const Tensor& x, const Tensor* source, const Tensor& offsets,
              std::span<const Weight> experts, const Tensor& out) {
  CHECK_GT(experts.size(), size_t{0});
  const Weight& w = experts[0];
  const int64_t count = static_cast<int64_t>(experts.size());
  tensor::expect(x, "x of moe_gemm", activation_dtype(context.device), {-1, w.k});
  tensor::expect(offsets, "offsets of moe_gemm", DType::kI32, {count + 1});
  for (const Weight& e : experts) {
    CHECK(e.n == w.n && e.k == w.k && e.layout == w.layout);
  }
  CHECK(layout_fits(context.device, w.layout));
  const int32_t* const at = offsets.as<int32_t>();
  const int64_t slots = source != nullptr ? source->rows() : x.rows();
  CHECK(at[0] == 0 && at[count] == slots);
  for (int64_t e = 0; e < count; ++e) CHECK_LE(at[e], at[e + 1]);
  if (source != nullptr) {
    tensor::expect(*source, "source of moe_gemm", DType::kI32, {slots});
    for (int64_t i = 0; i < slots; ++i) {
      const int32_t row = source->as<int32_t>()[i];
      CHECK(row >= 0 && row < x.rows());
    }
  }
  const DType real = real_dtype(context.device);
  const DType type = out.dtype == real ? real : activation_dtype(context.device);
  tensor::expect(out, "out of moe_gemm", type, {slots, w.n});
  switch (context.device) {
    case Device::kReference:
      return ref::moe_gemm(context, x, source, offsets, experts, out);
    case Device::kCpu:
      return cpu::moe_gemm(context, x, source, offsets, experts, out);
    default:
      CHECK(!"this device has no moe_gemm");
  }
}

}  // namespace perigee::ops
