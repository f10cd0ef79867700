#include "ops/gemm/gemm.h"

#include "base/check.h"

namespace perigee::ops {
namespace {

using tensor::Device;
using tensor::WeightLayout;

void check(const Context& context, const GemmItem& item) {
  const bool reference = context.device == Device::kReference;
  tensor::expect(item.x, "x of gemm", activation_dtype(context.device), {-1, item.w.k});
  CHECK(item.w.layout == (reference                           ? WeightLayout::kRowMajorBf16
                          : context.device == Device::kCuda ? WeightLayout::kFragmentBf16
                                                            : WeightLayout::kTiledBf16));
  const tensor::DType real = real_dtype(context.device);
  const tensor::DType out = item.out.dtype == real ? real : activation_dtype(context.device);
  tensor::expect(item.out, "out of gemm", out, {item.x.rows(), item.w.n});
}

// Place of one value in a panel of kFragmentBf16: lane (row mod 8) * 4 + (column mod 8) / 2 holds four words.
int64_t fragment_place(int64_t row, int64_t column) {
  const int64_t lane = row % 8 * 4 + column % 8 / 2;
  const int64_t word = row / 8 + column % 16 / 8 * 2;
  return column / 16 * (kGemmFragment * kGemmFragment) + lane * 8 + word * 2 + column % 2;
}

}  // namespace

int64_t gemm_packed_bytes(WeightLayout layout, int64_t n, int64_t k) {
  CHECK(layout == WeightLayout::kTiledBf16 || layout == WeightLayout::kFragmentBf16);
  const int64_t wide = layout == WeightLayout::kTiledBf16 ? kGemmBlock : kGemmFragment;
  const int64_t panels = (n + kGemmPanel - 1) / kGemmPanel;
  const int64_t blocks = (k + wide - 1) / wide;
  return panels * kGemmPanel * blocks * wide * 2;
}

void gemm_pack_rows(WeightLayout layout, const bf16* rows, int64_t row_count, int64_t k, int64_t row_stride,
                    void* packed, int64_t n_total, int64_t row_offset) {
  CHECK(row_count >= 0 && row_offset >= 0 && row_offset + row_count <= n_total);
  CHECK(layout == WeightLayout::kTiledBf16 || layout == WeightLayout::kFragmentBf16);
  const bool tiled = layout == WeightLayout::kTiledBf16;
  const int64_t wide = tiled ? kGemmBlock : kGemmFragment;
  const int64_t padded = (k + wide - 1) / wide * wide;
  const int64_t n_padded = (n_total + kGemmPanel - 1) / kGemmPanel * kGemmPanel;
  const bool last = row_count > 0 && row_offset + row_count == n_total;
  const int64_t end = last ? n_padded : row_offset + row_count;
  auto* const base = static_cast<bf16*>(packed);
  for (int64_t n = row_offset; n < end; ++n) {
    const int64_t real_columns = n < n_total ? k : 0;
    const bf16* const row = rows + (n - row_offset) * row_stride;
    bf16* const panel = base + n / kGemmPanel * kGemmPanel * padded;
    const int64_t inside = n % kGemmPanel;
    for (int64_t c = 0; c < padded; ++c) {
      const int64_t at = tiled ? inside * 2 + c / 2 * (2 * kGemmPanel) + c % 2 : fragment_place(inside, c);
      panel[at] = c < real_columns ? row[c] : bf16{};
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
    case Device::kCuda:
      if constexpr (kCudaBuilt) return cuda::gemm_batched(context, items);
      break;
  }
  CHECK(!"this device has no gemm");
}

void gemm(const Context& context, const Tensor& x, const Weight& w, const Tensor& out) {
  const GemmItem item = {x, w, out};
  gemm_batched(context, {&item, 1});
}

}  // namespace perigee::ops
