#include "model/state.h"

#include <algorithm>
#include <atomic>
#include <numeric>

#include "ops/context.h"
#include "ops/conv1d/conv1d.h"

namespace perigee::model {
namespace {

int64_t align(int64_t bytes) { return static_cast<int64_t>(tensor::aligned(static_cast<size_t>(bytes))); }

int64_t recurrent_bytes(const Config& c, tensor::Device device) {
  return align(c.kda_heads * c.kda_head_dim * c.kda_head_dim * tensor::dtype_bytes(ops::real_dtype(device)));
}

int64_t conv_row_bytes(const Config& c, tensor::Device device) {
  return 3 * c.kda_width() * tensor::dtype_bytes(ops::activation_dtype(device));
}

}  // namespace

std::vector<cache::LayerSpec> layer_specs(const Config& config, tensor::Device device, CacheFormats formats) {
  std::vector<cache::LayerSpec> specs;
  for (const LayerKind kind : config.layer_kind) {
    cache::LayerSpec spec;
    if (kind == LayerKind::kMla) {
      spec.pages.push_back({"latent", latent_bytes(formats.latent, config.kv_lora, config.qk_rope)});
      if (config.index_topk > 0) spec.pages.push_back({"key", key_bytes(formats.key, config.index_dim)});
    } else {
      spec.state_bytes = recurrent_bytes(config, device) + (config.conv_width - 1) * conv_row_bytes(config, device);
    }
    specs.push_back(spec);
  }
  return specs;
}

StateLayout make_state_layout(const Config& config, tensor::Device device, CacheFormats formats) {
  StateLayout s;
  s.device = device;
  s.formats = formats;
  const Result<cache::Layout> rows = cache::plan_rows(layer_specs(config, device, formats));
  CHECK(rows.ok());
  s.rows = *rows;
  s.latent_bytes = latent_bytes(formats.latent, config.kv_lora, config.qk_rope);
  s.key_bytes = config.index_topk > 0 ? key_bytes(formats.key, config.index_dim) : 0;
  for (const std::vector<cache::Place>& places : s.rows.places) {
    const auto group = static_cast<size_t>(places[0].group);
    if (s.rows.groups[group].states) {
      s.state_group.push_back(places[0].group - s.rows.page_groups());
      s.state_offset.push_back(places[0].offset);
    } else {
      s.latent_offset.push_back(places[0].offset);
      s.key_offset.push_back(places.size() > 1 ? places[1].offset : 0);
    }
  }
  for (const cache::Group& g : s.rows.groups) {
    if (g.states) s.group_bytes.push_back(g.bytes);
  }
  s.state_groups = static_cast<int64_t>(s.group_bytes.size());
  if (s.kda_layers() > 0) {
    s.kda = {config.kda_heads, config.kda_head_dim, config.kda_head_dim, config.gate_lower_bound};
    s.recurrent_bytes = recurrent_bytes(config, device);
    s.kda_open_bytes = align(ops::kda_open_bytes(device, s.kda));
    s.conv_open_bytes = config.conv_width > 1 ? align(ops::kConvChunk * conv_row_bytes(config, device)) : 0;
    s.slot_bytes = s.kda_layers() * (s.kda_open_bytes + s.conv_open_bytes);
  }
  return s;
}

void Sequence::reset() {
  length_ = 0;
  for (const int32_t row : states_) pool_->clear_states(row);
}

Result<std::unique_ptr<StatePool>> StatePool::create(const Config& config, const tensor::Mover& mover, CacheFormats formats,
                                                     int64_t rows, int64_t slots) {
  static std::atomic<uint64_t> pools = 0;
  std::unique_ptr<StatePool> pool(new StatePool());
  pool->serial_ = ++pools;
  pool->layout_ = make_state_layout(config, mover.device, formats);
  pool->mover_ = mover;
  pool->rows_ = rows;
  pool->slots_ = slots;
  const int64_t bytes = rows * pool->layout_.rows.row_bytes + slots * pool->layout_.slot_bytes;
  Result<tensor::Arena> memory = tensor::Arena::create(
      static_cast<size_t>(bytes), fmt::format("the cache of {} rows of {} tokens for {} sequence(s)", rows,
                                              pool->layout_.block_tokens(), slots), mover.device);
  if (!memory.ok()) return memory.error();
  pool->memory_ = std::move(*memory);
  if (bytes > 0) pool->base_ = pool->memory_.allocate(static_cast<size_t>(bytes));
  return pool;
}

Result<std::unique_ptr<StatePool>> StatePool::for_lengths(const Config& config, const tensor::Mover& mover,
                                                          CacheFormats formats,
                                                          const std::vector<int64_t>& tokens_max) {
  const StateLayout layout = make_state_layout(config, mover.device, formats);
  int64_t rows = 0;
  for (const int64_t t : tokens_max) rows += cache::rows_of_request(layout.rows, t);
  Result<std::unique_ptr<StatePool>> created =
      create(config, mover, formats, rows, static_cast<int64_t>(tokens_max.size()));
  if (!created.ok()) return created.error();
  StatePool& pool = **created;
  int32_t next = 0;
  for (size_t i = 0; i < tokens_max.size(); ++i) {
    std::vector<int32_t> table(static_cast<size_t>(cache::rows_of_request(layout.rows, tokens_max[i])));
    std::iota(table.begin(), table.end(), next);
    next += static_cast<int32_t>(table.size());
    pool.tables_.push_back(std::move(table));
    const std::span<const int32_t> all = pool.tables_.back();
    const size_t blocks = all.size() - static_cast<size_t>(layout.state_groups);
    pool.sequences_.push_back(pool.bind(all.first(blocks), all.subspan(blocks), static_cast<int64_t>(i), 0));
  }
  return created;
}

std::byte* StatePool::row(int32_t i) {
  CHECK(i >= 0 && i < rows_);
  return base_ + i * layout_.rows.row_bytes;
}

Sequence StatePool::bind(std::span<const int32_t> blocks, std::span<const int32_t> states, int64_t slot,
                         int64_t length) {
  CHECK(slot >= 0 && slot < slots_);
  CHECK_EQ(static_cast<int64_t>(states.size()), layout_.state_groups);
  Sequence s;
  s.layout_ = &layout_;
  s.pool_ = this;
  s.slot_ = slot;
  s.blocks_ = blocks;
  s.states_ = states;
  s.length_ = length;
  return s;
}

tensor::PagePlace StatePool::latents(int64_t layer) const {
  const int64_t offset = layout_.latent_offset[static_cast<size_t>(layer)];
  return {base_ + offset, layout_.rows.row_bytes, layout_.block_tokens(), layout_.latent_bytes};
}

tensor::PagePlace StatePool::keys(int64_t layer) const {
  const int64_t offset = layout_.key_offset[static_cast<size_t>(layer)];
  return {base_ + offset, layout_.rows.row_bytes, layout_.block_tokens(), layout_.key_bytes};
}

tensor::StatePlace StatePool::kda_state(int64_t layer) const {
  const auto i = static_cast<size_t>(layer);
  return {base_ + layout_.state_offset[i], layout_.rows.row_bytes, layout_.state_group[i]};
}

tensor::StatePlace StatePool::conv_window(int64_t layer) const {
  tensor::StatePlace place = kda_state(layer);
  place.base += layout_.recurrent_bytes;
  return place;
}

tensor::SlotPlace StatePool::kda_open(int64_t layer) const {
  return {slots_base() + layer * (layout_.kda_open_bytes + layout_.conv_open_bytes), layout_.slot_bytes};
}

tensor::SlotPlace StatePool::conv_open(int64_t layer) const {
  tensor::SlotPlace place = kda_open(layer);
  place.base += layout_.kda_open_bytes;
  return place;
}

// Every state row is as long as its group's states; the longest group bounds them all.
void StatePool::clear_states(int32_t i) {
  const int64_t bytes = *std::max_element(layout_.group_bytes.begin(), layout_.group_bytes.end());
  mover_.zero(row(i), static_cast<size_t>(bytes));
}

void StatePool::copy_states(int32_t from, int32_t to) {
  const int64_t bytes = *std::max_element(layout_.group_bytes.begin(), layout_.group_bytes.end());
  mover_.copy(row(to), row(from), static_cast<size_t>(bytes));
}

void StatePool::copy_tokens(int32_t from, int32_t to, int64_t tokens) {
  const int64_t whole = (tokens + tensor::kPageTokens - 1) / tensor::kPageTokens * tensor::kPageTokens;
  const auto copy = [&](int64_t offset, int64_t token_bytes) {
    mover_.copy(row(to) + offset, row(from) + offset, static_cast<size_t>(whole * token_bytes));
  };
  for (size_t l = 0; l < layout_.latent_offset.size(); ++l) {
    copy(layout_.latent_offset[l], layout_.latent_bytes);
    if (layout_.key_bytes > 0) copy(layout_.key_offset[l], layout_.key_bytes);
  }
}

}  // namespace perigee::model
