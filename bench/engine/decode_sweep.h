// What    Times decode steps of a model over batch sizes and context lengths, beside the floor that its bytes set.
// Owner   bench.
// Threads Main thread.
// Errors  One sentence when memory for a case is refused.
//
// Method. 2,048 random tokens are run once; their cache rows and states are copied until every sequence holds `context` tokens, so
// values and their spread are real and nothing has to be prefilled for hours. Then 5 steps to warm up and `steps` timed ones;
// "forward" leaves the steps in the stream and waits once at the end, "step" also computes logits and draws a token of each
// sequence at temperature 1, waiting for it as a server does.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "engine/engine.h"

namespace perigee::bench {

struct DecodeCase {
  int64_t batch = 1;
  int64_t context = 0;  // a multiple of 16
  double forward_s = 0;
  double step_s = 0;
  double bytes = 0;  // that the step must move
};

Result<DecodeCase> time_decode(const engine::Engine& engine, int64_t batch, int64_t context, int64_t steps);

// Seconds to prefill `tokens` random tokens in steps of the engine's size.
Result<double> time_prefill(const engine::Engine& engine, int64_t tokens);

}  // namespace perigee::bench
