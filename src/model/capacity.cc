#include "model/capacity.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "model/weight_table.h"
#include "model/workspace.h"

namespace perigee::model {
namespace {

// What one rank of tensor parallelism sees of the model.
Result<Config> rank_config(const Config& config, int64_t ranks) {
  Config c = config;
  if (ranks < 1) return invalid_argument("--tensor-parallel-size is {}, at least one rank is needed", ranks);
  if (c.heads % ranks != 0 || c.kda_heads % ranks != 0) {
    return invalid_argument("--tensor-parallel-size {} does not divide the {} attention heads and {} KDA heads of {}", ranks,
                            c.heads, c.kda_heads, c.path);
  }
  c.heads /= ranks;
  c.kda_heads /= ranks;
  return c;
}

int64_t rank_weight_bytes(const Config& config, int64_t ranks) {
  int64_t bytes = 0;
  for (const TensorRow& row : weight_table(config)) {
    if (row.alias || row.pack == Pack::kNone) continue;
    const int64_t all = row.bytes() * row.copies;
    bytes += row.shard == Shard::kReplicated ? all : (all + ranks - 1) / ranks;
  }
  return bytes;
}

}  // namespace

Result<Capacity> plan_capacity(const Config& config, const CapacityOptions& o) {
  const Result<Config> rank = rank_config(config, o.tensor_ranks);
  if (!rank.ok()) return rank.error();
  if (o.context_ranks < 1 || o.tensor_ranks % o.context_ranks != 0) {
    return invalid_argument("--decode-context-parallel-size {} does not divide --tensor-parallel-size {}", o.context_ranks,
                            o.tensor_ranks);
  }
  if (o.max_model_len > config.positions_max) {
    return invalid_argument("--max-model-len {} is above the {} positions of {} (max_position_embeddings)", o.max_model_len,
                            config.positions_max, config.path);
  }
  Capacity c;
  c.layout = make_state_layout(*rank, tensor::Device::kCpu, o.formats);
  c.max_model_len = o.max_model_len > 0 ? o.max_model_len : config.positions_max;
  c.context_ranks = o.context_ranks;
  c.weight_bytes = rank_weight_bytes(config, o.tensor_ranks);
  c.open_chunk_bytes = o.max_num_seqs * c.layout.slot_bytes;
  c.workspace_bytes = Workspace::bytes(*rank, tensor::Device::kCpu, o.batched_tokens, c.max_model_len);
  c.pool_bytes = o.pool_bytes;
  if (c.pool_bytes == 0) {
    const auto usable = static_cast<int64_t>(static_cast<double>(o.device_bytes) * o.utilization);
    c.pool_bytes = usable - c.weight_bytes - c.open_chunk_bytes - c.workspace_bytes;
    if (c.pool_bytes < c.layout.rows.row_bytes) {
      return resource_exhausted(
          "a device of {} bytes used to {:.0f} % holds no row of {} bytes beside {} bytes of weights, {} of open chunks and {} "
          "of workspace; raise --device-memory-bytes or --tensor-parallel-size",
          o.device_bytes, 100 * o.utilization, c.layout.rows.row_bytes, c.weight_bytes, c.open_chunk_bytes, c.workspace_bytes);
    }
  }
  c.rows = c.pool_bytes / c.layout.rows.row_bytes;
  c.tokens = c.rows * c.layout.block_tokens() * c.context_ranks;
  c.rows_of_context = cache::rows_of_request(c.layout.rows, (c.max_model_len + c.context_ranks - 1) / c.context_ranks);
  c.contexts = c.rows / c.rows_of_context;
  return c;
}

std::string capacity_json(const Capacity& c) {
  using Json = nlohmann::ordered_json;
  Json groups = Json::array();
  for (const cache::Group& g : c.layout.rows.groups) {
    groups.push_back({{"kind", g.states ? "states" : "pages"}, {"layers", g.layers}, {"bytes", g.bytes}});
  }
  Json out;
  out["block_tokens"] = c.layout.block_tokens();
  out["row_bytes"] = c.layout.rows.row_bytes;
  out["groups"] = groups;
  out["token_bytes"] = c.layout.rows.token_bytes();
  out["rows"] = c.rows;
  out["tokens"] = c.tokens;
  out["max_model_len"] = c.max_model_len;
  out["rows_of_context"] = c.rows_of_context;
  out["contexts"] = c.contexts;
  out["bytes"] = {{"pool", c.pool_bytes},
                  {"rows", c.rows * c.layout.rows.row_bytes},
                  {"weights", c.weight_bytes},
                  {"open_chunks", c.open_chunk_bytes},
                  {"workspace", c.workspace_bytes}};
  return out.dump(1) + "\n";
}

std::string capacity_text(const Capacity& c) {
  const auto mb = [](int64_t bytes) { return fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1e6); };
  std::string out;
  const auto line = [&](const char* name, const std::string& text) { out += fmt::format("{:<22}{}\n", name, text); };
  line("block", fmt::format("{} tokens", c.layout.block_tokens()));
  line("row", fmt::format("{} bytes", c.layout.rows.row_bytes));
  for (const cache::Group& g : c.layout.rows.groups) {
    line(g.states ? "  states" : "  pages",
         fmt::format("{} layers, {} bytes, {:.0f} % of the row", g.layers.size(), g.bytes,
                     100.0 * static_cast<double>(g.bytes) / static_cast<double>(c.layout.rows.row_bytes)));
    // Where the first layers of the group stand.
    for (size_t i = 0; i < std::min<size_t>(g.layers.size(), 2); ++i) {
      for (const cache::Place& p : c.layout.rows.places[static_cast<size_t>(g.layers[i])]) {
        line("", fmt::format("  layer {:<4} bytes {} to {}", g.layers[i], p.offset, p.offset + p.bytes));
      }
    }
  }
  line("bytes per token", fmt::format("{}", c.layout.rows.token_bytes()));
  line("rows", fmt::format("{}", c.rows));
  line("tokens", fmt::format("{} ({:.2f}M)", c.tokens, static_cast<double>(c.tokens) / 1e6));
  line("full contexts", fmt::format("{} of {} tokens, {} rows each", c.contexts, c.max_model_len, c.rows_of_context));
  line("memory of one device", fmt::format("rows {}, weights {}, open chunks {}, workspace {}",
                                           mb(c.rows * c.layout.rows.row_bytes), mb(c.weight_bytes),
                                           mb(c.open_chunk_bytes), mb(c.workspace_bytes)));
  return out;
}

}  // namespace perigee::model
