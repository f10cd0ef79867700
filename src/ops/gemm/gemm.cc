#include "ops/gemm/gemm.h"

#include "base/check.h"

namespace perigee::ops {
namespace {

using tensor::Device;
using tensor::WeightLayout;

void check(const Context& context, const GemmItem& item) {
  const bool reference = context.device == Device::kReference;
  tensor::expect(item.x, "x of gemm", activation_dtype(context.device), {-1, item.w.k});
  CHECK(item.w.layout == (reference ? WeightLayout::kRowMajorBf16 : WeightLayout::kTiledBf16));
  const tensor::DType real = real_dtype(context.device);
  const tensor::DType out = item.out.dtype == real ? real : activation_dtype(context.device);
  tensor::expect(item.out, "out of gemm", out, {item.x.rows(), item.w.n});
}

}  // namespace

int64_t gemm_packed_bytes(int64_t n, int64_t k) {
  const int64_t panels = (n + kGemmPanel - 1) / kGemmPanel;
  const int64_t blocks = (k + kGemmBlock - 1) / kGemmBlock;
  return panels * kGemmPanel * blocks * kGemmBlock * 2;
}

void gemm_pack_rows(const bf16* rows, int64_t row_count, int64_t k, int64_t row_stride,
                    void* packed, int64_t n_total, int64_t row_offset) {
  CHECK(row_count >= 0 && row_offset >= 0 && row_offset + row_count <= n_total);
  const int64_t padded = (k + kGemmBlock - 1) / kGemmBlock * kGemmBlock;
  const int64_t n_padded = (n_total + kGemmPanel - 1) / kGemmPanel * kGemmPanel;
  const bool last = row_count > 0 && row_offset + row_count == n_total;
  const int64_t end = last ? n_padded : row_offset + row_count;
  auto* const base = static_cast<bf16*>(packed);
  for (int64_t n = row_offset; n < end; ++n) {
    const int64_t real_columns = n < n_total ? k : 0;
    const bf16* const row = rows + (n - row_offset) * row_stride;
    bf16* const to = base + n / kGemmPanel * kGemmPanel * padded + n % kGemmPanel * 2;
    for (int64_t c = 0; c < padded; ++c) {
      to[c / 2 * (2 * kGemmPanel) + c % 2] = c < real_columns ? row[c] : bf16{};
    }
  }
}

void gemm_batched(const Context& context, std::span<const GemmItem> items) {
  for (const GemmItem& item : items) check(context, item);
  switch (context.device) {
    case Device::kReference:
      return ref::gemm_batched(context, items);
    case Device::kCpu:
      return cpu::gemm_batched(context, items);
    default:
      CHECK(!"this device has no gemm");
  }
}

void gemm(const Context& context, const Tensor& x, const Weight& w, const Tensor& out) {
  const GemmItem item = {x, w, out};
  gemm_batched(context, {&item, 1});
}

}  // namespace perigee::ops
