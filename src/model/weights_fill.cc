#include "model/weights_fill.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <optional>

#include "load/reader.h"
#include "model/dummy.h"
#include "model/weight_sink.h"
#include "num/records.h"
#include "ops/dynamic_items.h"
#include "ops/gemm/gemm.h"
#include "ops/moe_gemm/moe_gemm.h"
#include "ops/moe_gemm/moe_layout.h"

namespace perigee::model {
namespace {

using load::FileDType;
using tensor::Device;

constexpr int64_t kJobBytes =
    int64_t{1} << 20;  // of the file: enough to hide the hand-out, little enough to balance
constexpr int kReadersMin = 8;
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

// Output rows that lie together in a layout.
int64_t panel_rows(const Weight& w) {
  return w.layout == tensor::WeightLayout::kFragmentMxfp4 ? ops::kFragmentBlock : ops::kGemmFragment;
}

int64_t packed_bytes(const Weight& w, int64_t rows) {
  return w.layout == tensor::WeightLayout::kFragmentMxfp4 ? ops::moe_packed_bytes(w.layout, rows, w.k)
                                                          : ops::gemm_packed_bytes(w.layout, rows, w.k);
}

// Buffers of one job; a thread keeps them from job to job.
struct Scratch {
  std::vector<float> floats;
  std::vector<bf16> values;
  std::vector<bf16> transposed;
  std::vector<uint8_t> codes;
  std::vector<uint8_t> scales;
  load::ReadBuffer first, second;
  Status failed;  // the first read that failed
};

// Moves rows from files, or from nowhere, to their places.
class Filler {
 public:
  Filler(Device device, const Config& config, const std::vector<WeightItem>& items,
         Weights& weights)
      : device_(device), config_(config), items_(items), weights_(weights), sink_(device) {
    if (device_ != Device::kCuda) return;
    for (const WeightItem& item : items_) {
      if (item.row->pack != Pack::kMatrix && item.row->pack != Pack::kCodes) continue;
      const Weight& to = item.row->matrix(weights_, item.row->layer, item.expert);
      const int64_t begin = item.row->row_offset, end = begin + item.row->n, panel = panel_rows(to);
      if (begin % panel == 0 && (end % panel == 0 || end == to.n)) continue;
      images_[to.data].resize(static_cast<size_t>(packed_bytes(to, to.n)));
    }
  }

  Status run(const Job& job, Scratch& scratch) {
    std::unique_ptr<WeightSink::Way> way = sink_.take();
    scratch.failed = {};
    Status status = fill(job, scratch, *way);
    sink_.give(std::move(way));
    return status.ok() ? scratch.failed : status;
  }

  // Reads files instead of using their maps, unless memory holds them all.
  Status open_readers() {
    const load::SafetensorsFile* seen = nullptr;
    for (const WeightItem& item : items_) {
      if (item.file == nullptr || seen == item.file || readers_.contains(item.file)) continue;
      seen = item.file;
      if (item.file->resident(0, item.file->size())) continue;
      Result<load::FileReader> reader = load::FileReader::open(item.file->path());
      if (!reader.ok()) return reader.error();
      readers_.emplace(item.file, std::move(*reader));
    }
    return {};
  }

  bool reads() const { return !readers_.empty(); }

  // After all jobs.
  void finish() {
    std::unique_ptr<WeightSink::Way> way = sink_.take();
    for (const auto& [place, image] : images_) {
      std::memcpy(way->open(const_cast<void*>(place), image.size()), image.data(), image.size());
      way->close();
    }
    sink_.give(std::move(way));
    sink_.finish();
  }

  // What a job's first row has to be a multiple of.
  int64_t granule(const WeightItem& item) const {
    const bool matrix = item.row->pack == Pack::kMatrix || item.row->pack == Pack::kCodes;
    return device_ == Device::kCuda && matrix ? std::max(ops::kFragmentBlock, ops::kGemmFragment) : 1;
  }

 private:
  Status fill(const Job& job, Scratch& scratch, WeightSink::Way& way) const {
    const WeightItem& item = items_[static_cast<size_t>(job.item)];
    switch (item.row->pack) {
      case Pack::kVector:
        vector(item, job, scratch, way);
        break;
      case Pack::kMatrix:
        matrix(item, job, scratch, way);
        break;
      case Pack::kCodes:
        return codes(item, companion(job), job, scratch, way);
      case Pack::kHeadMatrices:
        heads(item, job, scratch, way);
        break;
      case Pack::kMixerNorm:
        mixer(item, companion(job), scratch, way);
        break;
      case Pack::kScales:
      case Pack::kMixerQuery:
      case Pack::kNone:
        CHECK(false);
    }
    return {};
  }

 public:
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

  // Bytes of an item's tensor: in the file's map, or read into `buffer` when that is wanted and memory does not have them yet. A
  // failure is kept in the scratch, and the bytes are then zero.
  const std::byte* bytes(const WeightItem& item, int64_t begin, int64_t count, load::ReadBuffer& buffer, Scratch& scratch) const {
    const auto reader = readers_.find(item.file);
    if (reader == readers_.end()) return item.data() + begin;
    const size_t at = item.file->position(*item.tensor) + static_cast<size_t>(begin);
    if (item.file->resident(at, static_cast<size_t>(count))) return item.data() + begin;  // nothing is faster than no copy
    const Result<const std::byte*> read = reader->second.read(at, static_cast<size_t>(count), buffer);
    if (read.ok()) return *read;
    if (scratch.failed.ok()) scratch.failed = read.error();
    std::byte* const zeros = buffer.reserve(static_cast<size_t>(count));
    std::memset(zeros, 0, static_cast<size_t>(count));
    return zeros;
  }

  const bf16* values(const WeightItem& item, int64_t begin, int64_t count, Scratch& scratch) const {
    const size_t n = static_cast<size_t>(count);
    scratch.values.resize(n);
    if (item.tensor != nullptr) {
      const std::byte* data = bytes(item, begin * 2, count * 2, scratch.first, scratch);
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

  void vector(const WeightItem& item, const Job& job, Scratch& scratch, WeightSink::Way& way) const {
    const TensorRow& row = *item.row;
    const int64_t begin = job.begin * width(row), count = job.count * width(row);
    const int64_t to = row.row_offset * width(row) + begin;
    const Tensor& destination = row.tensor(weights_, row.layer);
    const int64_t element = tensor::dtype_bytes(destination.dtype);
    std::byte* const place = static_cast<std::byte*>(destination.data) + to * element;
    std::byte* const out = way.open(place, static_cast<size_t>(count * element));
    auto* const floats = reinterpret_cast<float*>(out);
    if (row.dtype == FileDType::kBF16) {
      std::memcpy(out, values(item, begin, count, scratch), static_cast<size_t>(count) * 2);
    } else if (item.tensor == nullptr) {
      fill_dummy(row, item.key, begin, {floats, static_cast<size_t>(count)});
    } else if (item.tensor->dtype == FileDType::kF32) {
      std::memcpy(out, bytes(item, begin * 4, count * 4, scratch.first, scratch), static_cast<size_t>(count) * 4);
    } else {
      const bf16* in = values(item, begin, count, scratch);
      for (int64_t i = 0; i < count; ++i) floats[i] = to_float(in[i]);
    }
    way.close();
  }

  // Has pack(memory, rows of the matrix there, first row) write rows [row, row + count) of a packed matrix: where it lies, into
  // its image on the host if its parts do not end between panels, or into the memory that goes to a GPU panel by panel.
  template <class F>
  void packed(const Weight& to, int64_t count, int64_t row, WeightSink::Way& way, F&& pack) const {
    void* const data = const_cast<void*>(to.data);
    if (device_ != Device::kCuda) return pack(data, to.n, row);
    if (const auto image = images_.find(to.data); image != images_.end()) {
      return pack(const_cast<std::byte*>(image->second.data()), to.n, row);
    }
    const int64_t panel = panel_rows(to);
    CHECK_EQ(row % panel, 0);
    std::byte* const place = static_cast<std::byte*>(data) + row / panel * packed_bytes(to, panel);
    pack(way.open(place, static_cast<size_t>(packed_bytes(to, count))), count, 0);
    way.close();
  }

  // Rows [row, row + count) of a dense matrix.
  void put(const Weight& to, const bf16* rows, int64_t count, int64_t row, WeightSink::Way& way) const {
    if (device_ == Device::kReference) {
      std::memcpy(static_cast<bf16*>(const_cast<void*>(to.data)) + row * to.k, rows, static_cast<size_t>(count * to.k) * 2);
      return;
    }
    packed(to, count, row, way, [&](void* memory, int64_t n, int64_t first) {
      ops::gemm_pack_rows(to.layout, rows, count, to.k, to.k, memory, n, first);
    });
  }

  void matrix(const WeightItem& item, const Job& job, Scratch& scratch, WeightSink::Way& way) const {
    const TensorRow& row = *item.row;
    const int64_t begin = job.begin * row.k, count = job.count * row.k;
    put(row.matrix(weights_, row.layer, item.expert), values(item, begin, count, scratch),
        job.count, row.row_offset + job.begin, way);
  }

  Status codes(const WeightItem& item, const WeightItem& scale_item, const Job& job,
               Scratch& scratch, WeightSink::Way& way) const {
    const TensorRow& row = *item.row;
    const int64_t code_width = row.k / 2, scale_width = row.k / kMxfp4Group;
    const uint8_t* in = nullptr;
    const uint8_t* scales = nullptr;
    if (item.tensor != nullptr) {
      in = reinterpret_cast<const uint8_t*>(
          bytes(item, job.begin * code_width, job.count * code_width, scratch.first, scratch));
      scales = reinterpret_cast<const uint8_t*>(
          bytes(scale_item, job.begin * scale_width, job.count * scale_width, scratch.second, scratch));
      if (!scratch.failed.ok()) return scratch.failed;
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
      packed(to, job.count, first, way, [&](void* memory, int64_t n, int64_t begin) {
        ops::moe_pack_mxfp4(to.layout, in, scales, job.count, row.k, memory, n, begin);
      });
    } else {
      uint8_t* out = static_cast<uint8_t*>(const_cast<void*>(to.data));
      std::memcpy(out + first * code_width, in, static_cast<size_t>(job.count * code_width));
      std::memcpy(const_cast<uint8_t*>(to.scales) + first * scale_width, scales,
                  static_cast<size_t>(job.count * scale_width));
    }
    return {};
  }

  // Per head the file has qk_nope key rows, then v_head value rows, each C wide.
  void heads(const WeightItem& item, const Job& job, Scratch& scratch, WeightSink::Way& way) const {
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
      put(mla.key_up[static_cast<size_t>(h)], scratch.transposed.data(), c, 0, way);
      put(mla.value_up[static_cast<size_t>(h)], in + nope * c, v, 0, way);
    }
  }

  // Norm weight times query: two BF16 factors of 8 bits, exact in FP32.
  void mixer(const WeightItem& norm, const WeightItem& query, Scratch& scratch, WeightSink::Way& way) const {
    const int64_t n = norm.row->n;
    void* const place = norm.row->tensor(weights_, norm.row->layer).data;
    float* const out = reinterpret_cast<float*>(way.open(place, static_cast<size_t>(n) * sizeof(float)));
    const bf16* in = values(norm, 0, n, scratch);
    std::vector<float> product(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) product[static_cast<size_t>(i)] = to_float(in[i]);
    in = values(query, 0, n, scratch);
    for (int64_t i = 0; i < n; ++i) out[i] = product[static_cast<size_t>(i)] * to_float(in[i]);
    way.close();
  }

  Device device_;
  const Config& config_;
  const std::vector<WeightItem>& items_;
  Weights& weights_;
  WeightSink sink_;
  std::map<const load::SafetensorsFile*, load::FileReader> readers_;  // none: the files' maps
  std::map<const void*, std::vector<std::byte>> images_;  // of matrices whose parts do not end between panels
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
                    Weights& weights, const LoadOptions& options) {
  Filler filler(context.device, config, items, weights);
  const auto& progress = options.progress;
  const bool on_gpu = context.device == Device::kCuda;
  using Source = LoadOptions::Source;
  if (options.source == Source::kFastSafetensors || (options.source == Source::kAuto && on_gpu)) {
    if (Status s = filler.open_readers(); !s.ok()) return s;
  }
  Residency residency;
  std::vector<Job> jobs;
  size_t total = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    const Pack pack = items[i].row->pack;
    if (placement.mapped[i] != 0 || pack == Pack::kScales || pack == Pack::kMixerQuery) continue;
    const int64_t rows = filler.row_count(items[i]), bytes = filler.row_bytes(items[i]);
    const int64_t granule = filler.granule(items[i]);
    const int64_t step = (std::max<int64_t>(1, kJobBytes / bytes) + granule - 1) / granule * granule;
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
  // Threads that wait for a disk leave their cores to others that pack.
  std::optional<ThreadPool> readers;
  if (filler.reads()) readers.emplace(std::max(kReadersMin, 2 * context.pool->threads()));
  ops::for_each_item(readers ? &*readers : context.pool, static_cast<int64_t>(jobs.size()), [&](int64_t j) {
    thread_local Scratch scratch;
    const Job& job = jobs[static_cast<size_t>(j)];
    if (Status s = filler.run(job, scratch); !s.ok()) {
      const std::lock_guard lock(mutex);
      if (failed.ok()) failed = std::move(s);
    }
    filler.sources(job, [&](const WeightItem& item, size_t from, size_t to) { residency.done(item, from, to); });
    if (!progress) return;
    const std::lock_guard lock(mutex);
    done += static_cast<size_t>(job.count * filler.row_bytes(items[static_cast<size_t>(job.item)]));
    progress(done, total);
  });
  filler.finish();
  return failed;
}

}  // namespace perigee::model
