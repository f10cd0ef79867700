#include "model/weights.h"

#include <algorithm>

#include "base/memory.h"
#include "load/index.h"
#include "model/weights_fill.h"
#include "model/weights_place.h"

namespace perigee::model {
namespace {

using tensor::Arena;
using tensor::Device;

void shape(const Config& config, Weights& weights) {
  weights.layers.resize(static_cast<size_t>(config.layers));
  for (int64_t l = config.dense_layers; l < config.layers; ++l) {
    MoeWeights& moe = weights.layers[static_cast<size_t>(l)].moe;
    moe.gate_up.resize(static_cast<size_t>(config.experts));
    moe.down.resize(static_cast<size_t>(config.experts));
  }
}

double bytes_of(const std::vector<TensorRow>& table) {
  double bytes = 0;
  for (const TensorRow& row : table) bytes += static_cast<double>(row.bytes()) * static_cast<double>(row.copies);
  return bytes;
}

// Refuses what cannot fit before anything of that size is made, a list of its tensors included.
Status check_memory(const std::vector<TensorRow>& table, const std::string& folder) {
  const double bytes = bytes_of(table);
  const double free = static_cast<double>(available_memory());
  if (bytes <= free) return {};
  return resource_exhausted(
      "the weights of {} need {:.1f} GiB, {:.1f} GiB are free on this machine", folder,
      bytes / (1 << 30), free / (1 << 30));
}

}  // namespace

int64_t weight_bytes(const Config& config) {
  return static_cast<int64_t>(std::min(bytes_of(weight_table(config)), 0x1p62));
}

Result<Weights> load_weights(const ops::Context& context, const Config& config,
                             const std::string& folder, const LoadOptions& options) {
  const bool dummy = options.source == LoadOptions::Source::kDummy;
  const std::vector<TensorRow> table = weight_table(config);
  if (context.device == Device::kCpu || (dummy && context.device == Device::kReference)) {
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
  const Placement plan = place_weights(context.device, config, items, nullptr, weights);
  Result<Arena> arena = Arena::create(plan.bytes, "the weights of " + folder, context.device);
  if (!arena.ok()) return arena.error();
  weights.arena = std::move(*arena);
  const Placement placed = place_weights(context.device, config, items, &weights.arena, weights);
  CHECK_EQ(placed.bytes, plan.bytes);
  CHECK_EQ(weights.arena.freeze(), plan.bytes);
  if (Status s = fill_weights(context, config, items, placed, weights, options); !s.ok()) return s.error();
  weights.bytes = placed.bytes + placed.mapped_bytes;
  if (context.device == Device::kReference) weights.files = std::move(files);
  return weights;
}

}  // namespace perigee::model
