#include "model/weights.h"

#include <cstring>
#include <mutex>

#include "base/memory.h"
#include "load/index.h"
#include "model/dummy.h"
#include "model/weight_items.h"
#include "num/records.h"
#include "ops/dynamic_items.h"
#include "ops/gemm/gemm.h"
#include "ops/moe_gemm/moe_gemm.h"

namespace perigee::model {
namespace {

using load::FileDType;
using tensor::Arena;
using tensor::Device;
using tensor::DType;
using tensor::WeightLayout;

constexpr int64_t kJobBytes =
    int64_t{1} << 20;  // of the file: enough to hide the hand-out, little enough to balance

int64_t width(const TensorRow& row) {
  return row.k > 0 ? row.k : 1;
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

  void place(const std::vector<WeightItem>& items, std::vector<uint8_t>& mapped) {
    mapped.assign(items.size(), 0);
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
  }
  size_t bytes() const { return bytes_; }
  size_t mapped_bytes() const { return mapped_bytes_; }

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
    return {device_ == Device::kCpu ? WeightLayout::kTiledBf16 : WeightLayout::kRowMajorBf16, n, k,
            data, nullptr};
  }
  int64_t dense_bytes(int64_t n, int64_t k) const {
    return device_ == Device::kCpu ? ops::gemm_packed_bytes(n, k) : n * k * 2;
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
    if (device_ == Device::kCpu) {
      to = {WeightLayout::kTiledMxfp4, n, k, take(ops::moe_packed_bytes(n, k)), nullptr};
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

// A range of one tensor's rows (of heads, for the matrices per head).
struct Job {
  int64_t item = 0;
  int64_t begin = 0;
  int64_t count = 0;
};

// Buffers of one job; a thread keeps them from job to job.
struct Scratch {
  std::vector<float> floats;
  std::vector<bf16> values;
  std::vector<bf16> transposed;
  std::vector<uint8_t> codes;
  std::vector<uint8_t> scales;
};

// Moves rows from files, or from nowhere, to their places.
class Filler {
 public:
  Filler(Device device, const Config& config, const std::vector<WeightItem>& items,
         Weights& weights)
      : device_(device), config_(config), items_(items), weights_(weights) {}

  void run(const Job& job, Scratch& scratch) const {
    const WeightItem& item = items_[static_cast<size_t>(job.item)];
    switch (item.row->pack) {
      case Pack::kVector:
        vector(item, job, scratch);
        break;
      case Pack::kMatrix:
        matrix(item, job, scratch);
        break;
      case Pack::kCodes:
        codes(item, scales_of(job), job, scratch);
        break;
      case Pack::kHeadMatrices:
        heads(item, job, scratch);
        break;
      case Pack::kMixerNorm:
        mixer(item, scales_of(job), scratch);
        break;
      case Pack::kScales:
      case Pack::kMixerQuery:
      case Pack::kNone:
        CHECK(false);
    }
  }

  // Bytes of the file that one row (one head) of an item stands for, and its number of rows (heads).
  int64_t row_bytes(const WeightItem& item) const {
    const TensorRow& row = *item.row;
    switch (row.pack) {
      case Pack::kCodes:
        return row.k / 2 + row.k / kMxfp4Group;
      case Pack::kHeadMatrices:
        return (config_.qk_nope + config_.v_head) * row.k * 2;
      case Pack::kMixerNorm:
        return row.n * 2 * 2;
      default:
        return width(row) * load::file_dtype_bits(row.dtype) / 8;
    }
  }
  int64_t row_count(const WeightItem& item) const {
    switch (item.row->pack) {
      case Pack::kHeadMatrices:
        return config_.heads;
      case Pack::kMixerNorm:
        return 1;
      default:
        return item.row->n;
    }
  }

 private:
  // What follows the codes or the mixer's norm in the table.
  const WeightItem& scales_of(const Job& job) const {
    const WeightItem& item = items_[static_cast<size_t>(job.item)];
    return items_[static_cast<size_t>(job.item + item.row->copies)];
  }

  // The map has done its duty for these bytes.
  static void drop(const WeightItem& item, int64_t begin, int64_t bytes) {
    if (item.file != nullptr)
      item.file->drop(*item.tensor, static_cast<size_t>(begin), static_cast<size_t>(bytes));
  }

  const bf16* values(const WeightItem& item, int64_t begin, int64_t count, Scratch& scratch) const {
    const size_t n = static_cast<size_t>(count);
    scratch.values.resize(n);
    if (item.tensor != nullptr) {
      const std::byte* data = item.data() + begin * 2;
      if (reinterpret_cast<uintptr_t>(data) % alignof(bf16) == 0)
        return reinterpret_cast<const bf16*>(data);
      std::memcpy(scratch.values.data(), data, n * 2);
      return scratch.values.data();
    }
    scratch.floats.resize(n);
    fill_dummy(*item.row, item.key, begin, scratch.floats);
    for (size_t i = 0; i < n; ++i) scratch.values[i] = to_bf16(scratch.floats[i]);
    return scratch.values.data();
  }

  void vector(const WeightItem& item, const Job& job, Scratch& scratch) const {
    const TensorRow& row = *item.row;
    const int64_t begin = job.begin * width(row), count = job.count * width(row);
    const int64_t to = row.row_offset * width(row) + begin;
    const Tensor& destination = row.tensor(weights_, row.layer);
    if (row.dtype == FileDType::kBF16) {
      std::memcpy(destination.as<bf16>() + to, values(item, begin, count, scratch),
                  static_cast<size_t>(count) * 2);
      return drop(item, begin * 2, count * 2);
    }
    float* out = destination.as<float>() + to;
    if (item.tensor == nullptr) {
      fill_dummy(row, item.key, begin, {out, static_cast<size_t>(count)});
    } else if (item.tensor->dtype == FileDType::kF32) {
      std::memcpy(out, item.data() + begin * 4, static_cast<size_t>(count) * 4);
    } else {
      const bf16* in = values(item, begin, count, scratch);
      for (int64_t i = 0; i < count; ++i) out[i] = to_float(in[i]);
    }
  }

  // Rows [row, row + count) of a dense matrix.
  void put(const Weight& to, const bf16* rows, int64_t count, int64_t row) const {
    void* data = const_cast<void*>(to.data);
    if (device_ == Device::kCpu) {
      ops::gemm_pack_rows(rows, count, to.k, to.k, data, to.n, row);
    } else {
      std::memcpy(static_cast<bf16*>(data) + row * to.k, rows,
                  static_cast<size_t>(count * to.k) * 2);
    }
  }

  void matrix(const WeightItem& item, const Job& job, Scratch& scratch) const {
    const TensorRow& row = *item.row;
    const int64_t begin = job.begin * row.k, count = job.count * row.k;
    put(row.matrix(weights_, row.layer, item.expert), values(item, begin, count, scratch),
        job.count, row.row_offset + job.begin);
    drop(item, begin * 2, count * 2);
  }

  void codes(const WeightItem& item, const WeightItem& scale_item, const Job& job,
             Scratch& scratch) const {
    const TensorRow& row = *item.row;
    const int64_t code_width = row.k / 2, scale_width = row.k / kMxfp4Group;
    const uint8_t* in = nullptr;
    const uint8_t* scales = nullptr;
    if (item.tensor != nullptr) {
      in = reinterpret_cast<const uint8_t*>(item.data()) + job.begin * code_width;
      scales = reinterpret_cast<const uint8_t*>(scale_item.data()) + job.begin * scale_width;
    } else {
      scratch.codes.resize(static_cast<size_t>(job.count * code_width));
      scratch.scales.resize(static_cast<size_t>(job.count * scale_width));
      fill_dummy_codes(item.key, job.begin * code_width, scratch.codes);
      fill_dummy_scales(*scale_item.row, scale_item.key, job.begin * scale_width, scratch.scales);
      in = scratch.codes.data();
      scales = scratch.scales.data();
    }
    const Weight& to = row.matrix(weights_, row.layer, item.expert);
    const int64_t first = row.row_offset + job.begin;
    if (device_ == Device::kCpu) {
      ops::moe_pack_mxfp4(in, scales, job.count, row.k, const_cast<void*>(to.data), to.n, first);
    } else {
      uint8_t* out = static_cast<uint8_t*>(const_cast<void*>(to.data));
      std::memcpy(out + first * code_width, in, static_cast<size_t>(job.count * code_width));
      std::memcpy(const_cast<uint8_t*>(to.scales) + first * scale_width, scales,
                  static_cast<size_t>(job.count * scale_width));
    }
    drop(item, job.begin * code_width, job.count * code_width);
    drop(scale_item, job.begin * scale_width, job.count * scale_width);
  }

  // Per head the file has qk_nope key rows, then v_head value rows, each C wide.
  void heads(const WeightItem& item, const Job& job, Scratch& scratch) const {
    const int64_t c = config_.kv_lora, nope = config_.qk_nope, v = config_.v_head;
    const MlaWeights& mla = weights_.layers[static_cast<size_t>(item.row->layer)].mla;
    for (int64_t h = job.begin; h < job.begin + job.count; ++h) {
      const int64_t begin = h * (nope + v) * c, count = (nope + v) * c;
      const bf16* in = values(item, begin, count, scratch);
      scratch.transposed.resize(static_cast<size_t>(c * nope));
      for (int64_t i = 0; i < nope; ++i) {
        for (int64_t j = 0; j < c; ++j)
          scratch.transposed[static_cast<size_t>(j * nope + i)] = in[i * c + j];
      }
      put(mla.key_up[static_cast<size_t>(h)], scratch.transposed.data(), c, 0);
      put(mla.value_up[static_cast<size_t>(h)], in + nope * c, v, 0);
      drop(item, begin * 2, count * 2);
    }
  }

  // Norm weight times query: two BF16 factors of 8 bits, exact in FP32.
  void mixer(const WeightItem& norm, const WeightItem& query, Scratch& scratch) const {
    const int64_t n = norm.row->n;
    float* out = norm.row->tensor(weights_, norm.row->layer).as<float>();
    const bf16* in = values(norm, 0, n, scratch);
    for (int64_t i = 0; i < n; ++i) out[i] = to_float(in[i]);
    in = values(query, 0, n, scratch);
    for (int64_t i = 0; i < n; ++i) out[i] *= to_float(in[i]);
  }

  Device device_;
  const Config& config_;
  const std::vector<WeightItem>& items_;
  Weights& weights_;
};

void fill(const ops::Context& context, const Config& config, const std::vector<WeightItem>& items,
          const std::vector<uint8_t>& mapped, Weights& weights, const LoadOptions& options) {
  const Filler filler(context.device, config, items, weights);
  std::vector<Job> jobs;
  size_t total = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    const Pack pack = items[i].row->pack;
    if (mapped[i] != 0 || pack == Pack::kScales || pack == Pack::kMixerQuery) continue;
    const int64_t rows = filler.row_count(items[i]), bytes = filler.row_bytes(items[i]);
    const int64_t step = std::max<int64_t>(1, kJobBytes / bytes);
    for (int64_t begin = 0; begin < rows; begin += step) {
      jobs.push_back({static_cast<int64_t>(i), begin, std::min(step, rows - begin)});
    }
    total += static_cast<size_t>(rows * bytes);
  }
  std::mutex mutex;
  size_t done = 0;
  ops::for_each_item(context.pool, static_cast<int64_t>(jobs.size()), [&](int64_t j) {
    thread_local Scratch scratch;
    const Job& job = jobs[static_cast<size_t>(j)];
    filler.run(job, scratch);
    if (!options.progress) return;
    const std::lock_guard lock(mutex);
    done += static_cast<size_t>(job.count * filler.row_bytes(items[static_cast<size_t>(job.item)]));
    options.progress(done, total);
  });
}

void shape(const Config& config, Weights& weights) {
  weights.layers.resize(static_cast<size_t>(config.layers));
  for (int64_t l = config.dense_layers; l < config.layers; ++l) {
    MoeWeights& moe = weights.layers[static_cast<size_t>(l)].moe;
    moe.gate_up.resize(static_cast<size_t>(config.experts));
    moe.down.resize(static_cast<size_t>(config.experts));
  }
}

// Refuses what cannot fit before anything of that size is made, a list of its tensors included.
Status check_memory(const std::vector<TensorRow>& table, const std::string& folder) {
  double bytes = 0;
  for (const TensorRow& row : table)
    bytes += static_cast<double>(row.bytes()) * static_cast<double>(row.copies);
  const double free = static_cast<double>(available_memory());
  if (bytes <= free) return {};
  return resource_exhausted(
      "the weights of {} need {:.1f} GiB, {:.1f} GiB are free on this machine", folder,
      bytes / (1 << 30), free / (1 << 30));
}

}  // namespace

Result<Weights> load_weights(const ops::Context& context, const Config& config,
                             const std::string& folder, const LoadOptions& options) {
  CHECK(context.device == Device::kCpu || context.device == Device::kReference);
  const bool dummy = options.source == LoadOptions::Source::kDummy;
  const std::vector<TensorRow> table = weight_table(config);
  if (dummy || context.device == Device::kCpu) {
    if (Status s = check_memory(table, folder); !s.ok()) return s.error();
  }
  std::vector<load::SafetensorsFile> files;
  std::vector<WeightItem> items;
  if (dummy) {
    items = dummy_items(table, options.seed);
  } else {
    Result<std::vector<load::SafetensorsFile>> opened = load::open_checkpoint(folder);
    if (!opened.ok()) return opened.error();
    files = std::move(*opened);
    const Result<Renames> renames = read_renames(folder, table);
    if (!renames.ok()) return renames.error();
    Result<std::vector<WeightItem>> bound = bind_items(table, config, files, *renames);
    if (!bound.ok()) return bound.error();
    items = std::move(*bound);
  }
  Weights weights;
  shape(config, weights);
  std::vector<uint8_t> mapped;
  Placer plan(context.device, config, nullptr, weights);
  plan.place(items, mapped);
  Result<Arena> arena = Arena::create(plan.bytes(), "the weights of " + folder);
  if (!arena.ok()) return arena.error();
  weights.arena = std::move(*arena);
  Placer placer(context.device, config, &weights.arena, weights);
  placer.place(items, mapped);
  CHECK_EQ(placer.bytes(), plan.bytes());
  CHECK_EQ(weights.arena.freeze(), plan.bytes());
  fill(context, config, items, mapped, weights, options);
  weights.bytes = plan.bytes() + plan.mapped_bytes();
  if (context.device == Device::kReference) weights.files = std::move(files);
  return weights;
}

}  // namespace perigee::model
