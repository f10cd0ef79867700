// What    The bytes that a decode step must move at least: the floor under its time.
// Owner   bench.
// Threads Pure function.
// Errors  None.
//
// Weights once, of the experts as many different ones as random routing meets; each sequence's KDA states read once and written
// every 16th token; the latents that attention reads (at most index_topk of them with an indexer) and all index keys.
// Activations, logits and exchanges between ranks are left out.
#pragma once

#include "model/state.h"

namespace perigee::bench {

struct StepBytes {
  double dense = 0;    // weights that every token reads
  double experts = 0;  // of routed experts
  double states = 0;
  double latents = 0;
  double keys = 0;
  double total() const { return dense + experts + states + latents + keys; }
};

// `batch` sequences of `context` tokens each.
StepBytes step_bytes(const model::Config& config, const model::StateLayout& layout, int64_t batch, int64_t context);

}  // namespace perigee::bench
