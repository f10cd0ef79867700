#include "model/gpu_limits.h"

#include "ops/index_score/index_score.h"
#include "ops/kda/kda.h"
#include "ops/mla/mla.h"
#include "ops/moe_permute/moe_permute.h"

namespace perigee::model {
namespace {

Status refuse(const Config& c, const char* key, int64_t value, const std::string& takes) {
  return invalid_argument("{}: {} is {}, the GPU's operations take {}; use --device cpu", c.path, key, value, takes);
}

}  // namespace

Status check_gpu_limits(const Config& c) {
  if (c.count(LayerKind::kKda) > 0 && (c.kda_head_dim % ops::kKdaGpuMultiple != 0 || c.kda_head_dim > ops::kKdaGpuMax)) {
    return refuse(c, "linear_attn_config.head_dim", c.kda_head_dim,
                  fmt::format("multiples of {} up to {}", ops::kKdaGpuMultiple, ops::kKdaGpuMax));
  }
  if (c.count(LayerKind::kMla) > 0 && c.kv_lora > ops::kMlaGpuLatentMax) {
    return refuse(c, "kv_lora_rank", c.kv_lora, fmt::format("at most {}", ops::kMlaGpuLatentMax));
  }
  if (c.index_topk > 0 && c.index_dim > ops::kIndexGpuColumnsMax) {
    return refuse(c, "index_head_dim", c.index_dim, fmt::format("at most {}", ops::kIndexGpuColumnsMax));
  }
  if (c.experts > ops::kPermuteGpuExpertsMax) {
    return refuse(c, "num_experts", c.experts, fmt::format("at most {}", ops::kPermuteGpuExpertsMax));
  }
  return {};
}

}  // namespace perigee::model
