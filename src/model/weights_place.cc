#include "model/weights_place.h"

#include "num/records.h"
#include "ops/gemm/gemm.h"
#include "ops/moe_gemm/moe_gemm.h"

namespace perigee::model {
namespace {

using load::FileDType;
using tensor::Arena;
using tensor::Device;
using tensor::DType;
using tensor::WeightLayout;

WeightLayout dense_layout(Device device) {
  switch (device) {
    case Device::kReference: return WeightLayout::kRowMajorBf16;
    case Device::kCpu: return WeightLayout::kTiledBf16;
    case Device::kCuda: return WeightLayout::kFragmentBf16;
  }
  CHECK(false);
  return WeightLayout::kRowMajorBf16;
}

DType memory_dtype(FileDType t) {
  return t == FileDType::kF32 ? DType::kF32 : DType::kBF16;
}

// Gives every weight its place: in the arena, or, on the reference device, in the map of the file where the bytes
// already lie as they must. With no arena it only counts.
class Placer {
 public:
  Placer(Device device, const Config& config, Arena* arena, Weights& weights)
      : device_(device), config_(config), arena_(arena), weights_(weights) {}

  Placement place(const std::vector<WeightItem>& items) {
    std::vector<uint8_t> mapped(items.size(), 0);
    for (size_t i = 0; i < items.size(); ++i) {
      const TensorRow& row = *items[i].row;
      switch (row.pack) {
        case Pack::kVector:
          mapped[i] = vector(items[i]);
          break;
        case Pack::kMatrix:
          mapped[i] = matrix(items[i]);
          break;
        case Pack::kCodes:
          mapped[i] = codes(items[i], items[i + static_cast<size_t>(row.copies)]);
          break;
        case Pack::kHeadMatrices:
          heads(row);
          break;
        case Pack::kMixerNorm:
          row.tensor(weights_, row.layer) = tensor(DType::kF32, row.n, 0);
          break;
        case Pack::kScales:
        case Pack::kMixerQuery:
        case Pack::kNone:
          break;
      }
    }
    return {bytes_, mapped_bytes_, std::move(mapped)};
  }

 private:
  std::byte* take(int64_t bytes) {
    bytes_ += tensor::aligned(static_cast<size_t>(bytes));
    return arena_ != nullptr ? arena_->allocate(static_cast<size_t>(bytes)) : nullptr;
  }
  Tensor tensor(DType dtype, int64_t n, int64_t k) {
    void* data = take(n * std::max<int64_t>(k, 1) * tensor::dtype_bytes(dtype));
    return k > 0 ? tensor::view(data, dtype, {n, k}) : tensor::view(data, dtype, {n});
  }

  // Whether the file's own bytes can serve: one tensor for the whole destination, right type, right alignment.
  bool in_map(const WeightItem& item, size_t alignment) const {
    const TensorRow& row = *item.row;
    return device_ == Device::kReference && item.tensor != nullptr &&
           item.tensor->dtype == row.dtype && row.n == row.rows_total &&
           reinterpret_cast<uintptr_t>(item.data()) % alignment == 0;
  }

  bool vector(const WeightItem& item) {
    const TensorRow& row = *item.row;
    if (row.row_offset != 0) return false;
    Tensor& to = row.tensor(weights_, row.layer);
    const DType dtype = memory_dtype(row.dtype);
    if (!in_map(item, static_cast<size_t>(tensor::dtype_bytes(dtype)))) {
      to = tensor(dtype, row.rows_total, row.k);
      return false;
    }
    void* data = const_cast<std::byte*>(item.data());
    to = row.k > 0 ? tensor::view(data, dtype, {row.n, row.k}) : tensor::view(data, dtype, {row.n});
    mapped_bytes_ += item.tensor->bytes();
    return true;
  }

  Weight dense(int64_t n, int64_t k, const void* data) const {
    return {dense_layout(device_), n, k, data, nullptr};
  }
  int64_t dense_bytes(int64_t n, int64_t k) const {
    return device_ == Device::kReference ? n * k * 2 : ops::gemm_packed_bytes(dense_layout(device_), n, k);
  }

  bool matrix(const WeightItem& item) {
    const TensorRow& row = *item.row;
    if (row.row_offset != 0) return false;
    Weight& to = row.matrix(weights_, row.layer, item.expert);
    const bool map = in_map(item, sizeof(bf16));
    if (map) mapped_bytes_ += item.tensor->bytes();
    to = dense(row.rows_total, row.k, map ? item.data() : take(dense_bytes(row.rows_total, row.k)));
    return map;
  }

  bool codes(const WeightItem& item, const WeightItem& scales) {
    const TensorRow& row = *item.row;
    if (row.row_offset != 0) return false;
    Weight& to = row.matrix(weights_, row.layer, item.expert);
    const int64_t n = row.rows_total, k = row.k;
    if (device_ != Device::kReference) {
      const WeightLayout layout = device_ == Device::kCpu ? WeightLayout::kTiledMxfp4 : WeightLayout::kFragmentMxfp4;
      to = {layout, n, k, take(ops::moe_packed_bytes(layout, n, k)), nullptr};
      return false;
    }
    const bool map = in_map(item, 1) && in_map(scales, 1);
    const std::byte* data = map ? item.data() : take(n * k / 2);
    const std::byte* scale_data = map ? scales.data() : take(n * k / kMxfp4Group);
    if (map) mapped_bytes_ += item.tensor->bytes() + scales.tensor->bytes();
    to = {WeightLayout::kRowMajorMxfp4, n, k, data, reinterpret_cast<const uint8_t*>(scale_data)};
    return map;
  }

  void heads(const TensorRow& row) {
    MlaWeights& mla = weights_.layers[static_cast<size_t>(row.layer)].mla;
    const int64_t c = config_.kv_lora;
    mla.key_up.clear();
    mla.value_up.clear();
    for (int64_t h = 0; h < config_.heads; ++h) {
      mla.key_up.push_back(dense(c, config_.qk_nope, take(dense_bytes(c, config_.qk_nope))));
      mla.value_up.push_back(dense(config_.v_head, c, take(dense_bytes(config_.v_head, c))));
    }
  }

  Device device_;
  const Config& config_;
  Arena* arena_;
  Weights& weights_;
  size_t bytes_ = 0;
  size_t mapped_bytes_ = 0;
};

}  // namespace

Placement place_weights(Device device, const Config& config, const std::vector<WeightItem>& items,
                        Arena* arena, Weights& weights) {
  return Placer(device, config, arena, weights).place(items);
}

}  // namespace perigee::model
