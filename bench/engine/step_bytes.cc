#include "bench/engine/step_bytes.h"

#include <algorithm>
#include <cmath>

#include "model/weight_table.h"

namespace perigee::bench {

StepBytes step_bytes(const model::Config& config, const model::StateLayout& layout, int64_t batch, int64_t context) {
  StepBytes out;
  const auto tokens = static_cast<double>(batch);
  const double met = config.experts == 0
                         ? 0
                         : 1 - std::pow(1 - static_cast<double>(config.active_experts) / static_cast<double>(config.experts), tokens);
  double share = 0;  // scales follow their codes, which have the parameters
  for (const model::TensorRow& row : model::weight_table(config)) {
    if (row.pack == model::Pack::kNone || row.alias) continue;
    if (row.parameters > 0) share = static_cast<double>(row.active) / static_cast<double>(row.parameters * row.copies);
    const auto all = static_cast<double>(row.bytes() * row.copies);
    if (row.copies > 1) {
      out.experts += met * all;
    } else {
      out.dense += share < 1 ? std::min(all, tokens * share * all) : all;
    }
  }
  double state = 0;
  for (const int64_t bytes : layout.group_bytes) state += static_cast<double>(bytes);
  out.states = tokens * state * (1 + 1.0 / static_cast<double>(ops::kKdaChunk));
  const int64_t read = config.index_topk > 0 ? std::min(context, config.index_topk) : context;
  const auto layers = static_cast<double>(layout.mla_layers());
  out.latents = tokens * layers * static_cast<double>(read * layout.latent_bytes);
  out.keys = tokens * layers * static_cast<double>(context * layout.key_bytes);
  return out;
}

}  // namespace perigee::bench
