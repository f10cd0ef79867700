// What    Log-probabilities and draws from logits that lie in a GPU's memory, without bringing them to the host. Bits are those
//         of sample.h on a CPU, so it does not matter which rows are drawn where: filters (top-k, top-p, min-p) and edited rows
//         are drawn on the host.
// Owner   ops/sample.
// Shapes  logits [T, O] f32, lse and out [T] f32, ids [T] i32; keys and drawn one entry a row; all in device memory.
// Cost    log_sum_exp and draw read the logits once each.
// Threads As the context's stream; nothing waits.
// Errors  CHECK on shapes.
// Tests   sample_gpu_test.cc.
#pragma once

#include "ops/context.h"
#include "ops/sample/sample.h"

namespace perigee::ops {

// Whether a row of `width` logits can be drawn where it lies.
inline bool drawn_whole(const SampleParams& p, int64_t width) {
  const bool filtered = (p.top_k > 0 && p.top_k < width) || p.top_p < 1 || p.min_p > 0;
  return p.temperature == 0 || !filtered;
}

// A row's draw: its noise and 1 / temperature; 0 for the largest logit, below 0 for no draw.
struct DrawKey {
  uint64_t noise = 0;
  float factor = -1;
};

inline DrawKey draw_key(const SampleParams& p) {
  constexpr double kLargest = std::numeric_limits<float>::max();
  return {sample_key(p), p.temperature == 0 ? 0.0f : static_cast<float>(std::min(1 / p.temperature, kLargest))};
}

struct Drawn {
  int32_t id = 0;
  float logprob = 0;
  float processed_logprob = 0;
};

namespace cuda {
// Bytes that the calls below share for partial results of `rows` rows.
int64_t sample_workspace_bytes(int64_t rows, int64_t width);
void log_sum_exp(const Context& context, const Tensor& logits, void* workspace, const Tensor& out);
// After log_sum_exp of the same rows in the same workspace.
void draw(const Context& context, const Tensor& logits, const Tensor& lse, const DrawKey* keys, void* workspace,
          Drawn* drawn);
// out[t] = logits[t, ids[t]] - lse[t]; an id below 0 asks for none and gives 0.
void token_logprobs(const Context& context, const Tensor& logits, const Tensor& lse, const Tensor& ids, const Tensor& out);
}  // namespace cuda

}  // namespace perigee::ops
