#include "model/state.h"

#include <algorithm>
#include <cstring>

#include "ops/context.h"

namespace perigee::model {
namespace {

constexpr int64_t kBlockTokens = 256;  // a power of two; small, so that short sequences waste little

int64_t align(int64_t bytes) { return static_cast<int64_t>(tensor::aligned(static_cast<size_t>(bytes))); }

int64_t blocks_of(int64_t tokens) { return (tokens + kBlockTokens - 1) / kBlockTokens; }

}  // namespace

StateLayout make_state_layout(const Config& config, tensor::Device device, CacheFormats formats) {
  StateLayout s;
  s.device = device;
  s.formats = formats;
  s.block_tokens = kBlockTokens;
  s.mla_layers = config.count(LayerKind::kMla);
  s.kda_layers = config.count(LayerKind::kKda);
  s.latent_bytes = latent_bytes(formats.latent, config.kv_lora, config.qk_rope);
  s.key_bytes = config.index_topk > 0 ? key_bytes(formats.key, config.index_dim) : 0;
  s.row_bytes = align(s.mla_layers * kBlockTokens * (s.latent_bytes + s.key_bytes));
  if (s.kda_layers > 0) {
    s.kda = {config.kda_heads, config.kda_head_dim, config.kda_head_dim, config.gate_lower_bound};
    const int64_t real = tensor::dtype_bytes(ops::real_dtype(device));
    const int64_t act = tensor::dtype_bytes(ops::activation_dtype(device));
    s.kda_state_bytes = align(config.kda_heads * config.kda_head_dim * config.kda_head_dim * real);
    s.kda_open_bytes = align(ops::kda_open_bytes(device, s.kda));
    s.kda_window_bytes = align((config.conv_width - 1) * 3 * config.kda_width() * act);
    s.sequence_bytes = s.kda_layers * s.kda_layer_bytes();
  }
  return s;
}

tensor::PageView Sequence::pages(int64_t offset, int64_t token_bytes) const {
  return {pool_ + offset, layout_->row_bytes, rows_.data(), layout_->block_tokens, token_bytes};
}

tensor::PageView Sequence::latents(int64_t layer) const {
  return pages(layer * kBlockTokens * layout_->latent_bytes, layout_->latent_bytes);
}

tensor::PageView Sequence::keys(int64_t layer) const {
  const int64_t first = layout_->mla_layers * kBlockTokens * layout_->latent_bytes;
  return pages(first + layer * kBlockTokens * layout_->key_bytes, layout_->key_bytes);
}

void* Sequence::kda_state(int64_t layer) const { return kda_ + layer * layout_->kda_layer_bytes(); }

void* Sequence::kda_open(int64_t layer) const {
  return static_cast<std::byte*>(kda_state(layer)) + layout_->kda_state_bytes;
}

void* Sequence::conv_window(int64_t layer) const {
  return static_cast<std::byte*>(kda_open(layer)) + layout_->kda_open_bytes;
}

void Sequence::reset() {
  length_ = 0;
  std::memset(kda_, 0, static_cast<size_t>(layout_->sequence_bytes));
}

Result<std::unique_ptr<StatePool>> StatePool::create(const Config& config, tensor::Device device,
                                                     CacheFormats formats,
                                                     const std::vector<int64_t>& tokens_max) {
  std::unique_ptr<StatePool> pool(new StatePool());
  pool->layout_ = make_state_layout(config, device, formats);
  const StateLayout& layout = pool->layout_;
  int64_t rows = 0;
  int64_t tokens = 0;
  for (const int64_t t : tokens_max) {
    rows += blocks_of(t);
    tokens += t;
  }
  const int64_t bytes = rows * layout.row_bytes +
                        static_cast<int64_t>(tokens_max.size()) * layout.sequence_bytes;
  Result<tensor::Arena> memory = tensor::Arena::create(
      static_cast<size_t>(bytes), fmt::format("the cache for {} tokens in {} sequence(s)", tokens,
                                              tokens_max.size()));
  if (!memory.ok()) return memory.error();
  pool->memory_ = std::move(*memory);
  std::byte* base = bytes > 0 ? pool->memory_.allocate(static_cast<size_t>(bytes)) : nullptr;
  int32_t next_row = 0;
  for (size_t i = 0; i < tokens_max.size(); ++i) {
    Sequence s;
    s.layout_ = &layout;
    s.pool_ = base;
    s.kda_ = base + rows * layout.row_bytes + static_cast<int64_t>(i) * layout.sequence_bytes;
    s.tokens_max_ = tokens_max[i];
    for (int64_t b = 0; b < blocks_of(tokens_max[i]); ++b) s.rows_.push_back(next_row++);
    pool->sequences_.push_back(std::move(s));
  }
  return pool;
}

}  // namespace perigee::model
