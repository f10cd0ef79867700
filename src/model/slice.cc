#include "model/slice.h"

#include <algorithm>
#include <charconv>

namespace perigee::model {
namespace {

// Divides a dimension of the model; `failed` keeps the first that does not divide.
void divide(int64_t& dimension, int64_t ranks, const char* name, const Config& config, Status& failed) {
  if (dimension % ranks != 0) {
    if (failed.ok()) failed = invalid_argument("{} ranks do not divide the {} {} of {}", ranks, dimension, name, config.path);
    return;
  }
  dimension /= ranks;
}

}  // namespace

Result<Slice> parse_slice(const std::string& word) {
  Slice s;
  if (word.empty()) return s;
  s.whole_experts = word.starts_with("ep");
  const char* const begin = word.data() + std::min<size_t>(2, word.size());
  const char* const end = word.data() + word.size();
  const auto [at, error] = std::from_chars(begin, end, s.ranks);
  const bool known = word.starts_with("tp") || s.whole_experts;
  if (!known || at != end || error != std::errc() || s.ranks < 2 || s.ranks > 1024) {
    return invalid_argument("--slice is '{}'; use tp8, tp16, ep16 or another number of ranks", word);
  }
  return s;
}

Result<Config> slice_config(const Config& config, const Slice& slice) {
  Config c = config;
  if (slice.layers < 0 || slice.layers > c.layers) {
    return out_of_range("{} layers were asked for, {} has {}", slice.layers, c.path, c.layers);
  }
  if (slice.layers > 0) {
    c.layers = slice.layers;
    c.layer_kind.resize(static_cast<size_t>(c.layers));
  }
  if (slice.ranks == 1) return c;
  Status failed;
  divide(c.heads, slice.ranks, "attention heads", config, failed);
  divide(c.kda_heads, slice.ranks, "KDA heads", config, failed);
  divide(c.dense_width, slice.ranks, "columns of the dense layers", config, failed);
  divide(c.vocab, slice.ranks, "rows of the vocabulary", config, failed);
  if (slice.whole_experts) {
    divide(c.experts, slice.ranks, "experts", config, failed);
    c.active_experts = std::max<int64_t>(1, c.active_experts / slice.ranks);
  } else {
    divide(c.expert_width, slice.ranks, "columns of an expert", config, failed);
  }
  if (!failed.ok()) return failed.error();
  return c;
}

}  // namespace perigee::model
