#include "model/weights_fill.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>

#include "model/dummy.h"
#include "num/records.h"
#include "ops/dynamic_items.h"
#include "ops/gemm/gemm.h"
#include "ops/moe_gemm/moe_gemm.h"

namespace perigee::model {
namespace {

using load::FileDType;
using tensor::Device;

constexpr int64_t kJobBytes =
    int64_t{1} << 20;  // of the file: enough to hide the hand-out, little enough to balance
constexpr size_t kDropBytes = size_t{2} << 20;  // mapped pages are given back in blocks of this

int64_t width(const TensorRow& row) {
  return row.k > 0 ? row.k : 1;
}

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

  Status run(const Job& job, Scratch& scratch) const {
    const WeightItem& item = items_[static_cast<size_t>(job.item)];
    switch (item.row->pack) {
      case Pack::kVector:
        vector(item, job, scratch);
        break;
      case Pack::kMatrix:
        matrix(item, job, scratch);
        break;
      case Pack::kCodes:
        return codes(item, companion(job), job, scratch);
      case Pack::kHeadMatrices:
        heads(item, job, scratch);
        break;
      case Pack::kMixerNorm:
        mixer(item, companion(job), scratch);
        break;
      case Pack::kScales:
      case Pack::kMixerQuery:
      case Pack::kNone:
        CHECK(false);
    }
    return {};
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

  // Calls visit(item, begin, end) for the bytes that a job reads of each tensor.
  template <class F>
  void sources(const Job& job, F&& visit) const {
    const WeightItem& item = items_[static_cast<size_t>(job.item)];
    if (item.tensor == nullptr) return;
    const TensorRow& row = *item.row;
    const auto rows = [&](const WeightItem& of, int64_t row_bytes) {
      visit(of, static_cast<size_t>(job.begin * row_bytes),
            static_cast<size_t>((job.begin + job.count) * row_bytes));
    };
    switch (row.pack) {
      case Pack::kCodes:
        rows(item, row.k / 2);
        return rows(companion(job), row.k / kMxfp4Group);
      case Pack::kMixerNorm:
        rows(item, row.n * 2);
        return rows(companion(job), row.n * 2);
      case Pack::kHeadMatrices:
        return rows(item, row_bytes(item));
      default:
        return rows(item, width(row) * load::file_dtype_bits(item.tensor->dtype) / 8);
    }
  }

 private:
  // What follows the codes or the mixer's norm in the table.
  const WeightItem& companion(const Job& job) const {
    const WeightItem& item = items_[static_cast<size_t>(job.item)];
    return items_[static_cast<size_t>(job.item + item.row->copies)];
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
      return;
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
    if (device_ != Device::kReference) {
      ops::gemm_pack_rows(to.layout, rows, count, to.k, to.k, data, to.n, row);
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
  }

  Status codes(const WeightItem& item, const WeightItem& scale_item, const Job& job,
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
    if (!ops::moe_packable(to.layout, scales, job.count * scale_width)) {
      return invalid_argument("{}: {} has block scales above 2 (or NaN), which the GPU's expert products do not hold; "
                              "use --device cpu",
                              scale_item.file->path(), scale_item.tensor->name);
    }
    if (device_ != Device::kReference) {
      ops::moe_pack_mxfp4(to.layout, in, scales, job.count, row.k, const_cast<void*>(to.data), to.n, first);
    } else {
      uint8_t* out = static_cast<uint8_t*>(const_cast<void*>(to.data));
      std::memcpy(out + first * code_width, in, static_cast<size_t>(job.count * code_width));
      std::memcpy(const_cast<uint8_t*>(to.scales) + first * scale_width, scales,
                  static_cast<size_t>(job.count * scale_width));
    }
    return {};
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

// Gives mapped pages back as soon as nobody needs them, so that a model of any size needs little more memory than its
// packed weights. Tensors are smaller than pages and faults bring in neighbours, hence blocks.
class Residency {
 public:
  void expect(const WeightItem& item, size_t begin, size_t end) {
    if (item.file == nullptr) return;
    std::vector<std::atomic<int64_t>>& blocks = blocks_[item.file];
    if (blocks.empty())
      blocks = std::vector<std::atomic<int64_t>>(item.file->size() / kDropBytes + 1);
    each(item, begin, end, [&](size_t block, int64_t bytes) { blocks[block] += bytes; });
  }
  void done(const WeightItem& item, size_t begin, size_t end) {
    if (item.file == nullptr) return;
    std::vector<std::atomic<int64_t>>& blocks = blocks_.at(item.file);
    each(item, begin, end, [&](size_t block, int64_t bytes) {
      if (blocks[block].fetch_sub(bytes) != bytes) return;
      item.file->drop(block * kDropBytes, std::min((block + 1) * kDropBytes, item.file->size()));
    });
  }

 private:
  // The blocks under bytes [begin, end) of a tensor, with the bytes in each.
  template <class F>
  static void each(const WeightItem& item, size_t begin, size_t end, F&& f) {
    size_t at = item.file->position(*item.tensor) + begin;
    const size_t stop = item.file->position(*item.tensor) + end;
    while (at < stop) {
      const size_t block = at / kDropBytes;
      const size_t next = std::min(stop, (block + 1) * kDropBytes);
      f(block, static_cast<int64_t>(next - at));
      at = next;
    }
  }

  std::map<const load::SafetensorsFile*, std::vector<std::atomic<int64_t>>> blocks_;
};

}  // namespace

Status fill_weights(const ops::Context& context, const Config& config,
                    const std::vector<WeightItem>& items, const Placement& placement,
                    Weights& weights,
                    const std::function<void(size_t done, size_t total)>& progress) {
  const Filler filler(context.device, config, items, weights);
  Residency residency;
  std::vector<Job> jobs;
  size_t total = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    const Pack pack = items[i].row->pack;
    if (placement.mapped[i] != 0 || pack == Pack::kScales || pack == Pack::kMixerQuery) continue;
    const int64_t rows = filler.row_count(items[i]), bytes = filler.row_bytes(items[i]);
    const int64_t step = std::max<int64_t>(1, kJobBytes / bytes);
    for (int64_t begin = 0; begin < rows; begin += step) {
      jobs.push_back({static_cast<int64_t>(i), begin, std::min(step, rows - begin)});
      filler.sources(jobs.back(), [&](const WeightItem& item, size_t from, size_t to) {
        residency.expect(item, from, to);
      });
    }
    total += static_cast<size_t>(rows * bytes);
  }
  // In the order of the files: the disk reads ahead, and pages can be given back early.
  std::stable_sort(jobs.begin(), jobs.end(), [&](const Job& a, const Job& b) {
    const WeightItem& x = items[static_cast<size_t>(a.item)];
    const WeightItem& y = items[static_cast<size_t>(b.item)];
    if (x.file != y.file) return std::less<>()(x.file, y.file);
    return x.file != nullptr && x.tensor->begin < y.tensor->begin;
  });
  std::mutex mutex;
  size_t done = 0;
  Status failed;
  ops::for_each_item(context.pool, static_cast<int64_t>(jobs.size()), [&](int64_t j) {
    thread_local Scratch scratch;
    const Job& job = jobs[static_cast<size_t>(j)];
    if (Status s = filler.run(job, scratch); !s.ok()) {
      const std::lock_guard lock(mutex);
      if (failed.ok()) failed = std::move(s);
    }
    filler.sources(job, [&](const WeightItem& item, size_t from, size_t to) {
      residency.done(item, from, to);
    });
    if (!progress) return;
    const std::lock_guard lock(mutex);
    done += static_cast<size_t>(job.count * filler.row_bytes(items[static_cast<size_t>(job.item)]));
    progress(done, total);
  });
  return failed;
}

}  // namespace perigee::model
