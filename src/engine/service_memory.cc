#include "engine/service_memory.h"

#include <algorithm>

#include "engine/logit_rows.h"
#include "engine/memory_plan.h"
#include "model/workspace.h"
#include "tensor/gpu.h"

namespace perigee::engine {
namespace {

constexpr int64_t kContextsDefault = 4;  // full contexts that a CPU's pool of default size holds

// What a service takes beside its pool.
MemoryPlan beside(const Engine& engine, const model::StateLayout& layout, const ServiceOptions& o, int64_t length) {
  const model::Config& c = engine.config();
  MemoryPlan plan;
  plan.add(fmt::format("the open chunks of {} sequences", o.max_num_seqs), o.max_num_seqs * layout.slot_bytes,
           "lower --max-num-seqs");
  plan.add(fmt::format("the workspace for steps of {} tokens", o.max_num_batched_tokens),
           model::Workspace::bytes(c, engine.device(), o.max_num_batched_tokens, length), "lower --max-num-batched-tokens");
  const int64_t rows = LogitRows::rows_for(engine.device(), c.vocab);
  plan.add("logits", LogitRows::bytes_for(engine.device(), rows, c.vocab, c.hidden));
  return plan;
}

// What was asked for, or as ServiceOptions::cache_bytes says.
int64_t choose_rows(const Engine& engine, const model::StateLayout& layout, const ServiceOptions& o, int64_t positions) {
  if (o.cache_bytes > 0) return o.cache_bytes / layout.rows.row_bytes;
  const int64_t full = cache::rows_of_request(layout.rows, positions);
  if (layout.device == tensor::Device::kCuda) {
    const Result<tensor::GpuInfo> gpu = tensor::open_gpu(0);
    if (!gpu.ok()) return 0;
    const int64_t budget = cache_budget(static_cast<int64_t>(gpu->memory_bytes), static_cast<int64_t>(gpu->free_bytes),
                                        o.memory_share, beside(engine, layout, o, positions).bytes());
    return std::min(o.max_num_seqs * full, budget / layout.rows.row_bytes);
  }
  const int64_t wanted = kContextsDefault * full + 4 * layout.state_groups * o.max_num_seqs;
  const int64_t quarter = free_memory(layout.device) / 4;
  return std::min(wanted, quarter / layout.rows.row_bytes);
}

}  // namespace

Result<PoolSize> plan_pool(const Engine& engine, const model::StateLayout& layout, const ServiceOptions& o) {
  const int64_t positions = o.max_model_len > 0 ? o.max_model_len : engine.config().positions_max;
  const int64_t rows = choose_rows(engine, layout, o, positions);
  const int64_t room = (rows - layout.state_groups) * layout.block_tokens();
  const int64_t least = cache::rows_of_request(layout.rows, 1);
  if (rows < least || (o.max_model_len > 0 && room < o.max_model_len)) {
    return resource_exhausted(
        "the cache pool has {} rows of {} bytes, one sequence of {} tokens needs {}; raise --kv-cache-memory-bytes or lower "
        "--max-model-len",
        rows, layout.rows.row_bytes, o.max_model_len > 0 ? o.max_model_len : 1,
        cache::rows_of_request(layout.rows, std::max<int64_t>(o.max_model_len, 1)));
  }
  const int64_t length = std::min(positions, room);
  MemoryPlan plan;
  plan.add(fmt::format("the cache pool of {} rows", rows), rows * layout.rows.row_bytes, "lower --kv-cache-memory-bytes");
  plan.add(beside(engine, layout, o, length));
  if (Status s = plan.check(engine.device()); !s.ok()) return s.error();
  return PoolSize{rows, length};
}

}  // namespace perigee::engine
