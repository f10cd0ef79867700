// What is refused for lack of memory, and the limits of the GPU's operations; neither needs a GPU.
#include "engine/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/gpu_limits.h"

namespace perigee::engine {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kGib = int64_t{1} << 30;

TEST(MemoryPlan, ListsEveryPieceAndTheWaysOut) {
  MemoryPlan plan;
  plan.add("the weights of big", 100 * kGib).add("the workspace", 3 * kGib, "lower --max-num-batched-tokens");
  plan.add("the cache", 40 * kGib, "lower --kv-cache-memory-bytes").add("nothing", 0, "never said");
  EXPECT_EQ(plan.bytes(), 143 * kGib);
  EXPECT_TRUE(plan.check(143 * kGib, "the GPU").ok());
  const Status refused = plan.check(143 * kGib - 1, "the GPU");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
  EXPECT_THAT(refused.error().message,
              AllOf(HasSubstr("the weights of big 100.00 GiB + the workspace 3.00 GiB + the cache 40.00 GiB"),
                    HasSubstr("= 143.00 GiB, 143.00 GiB are free on the GPU; nothing was allocated"),
                    HasSubstr("; lower --max-num-batched-tokens or lower --kv-cache-memory-bytes")));
  EXPECT_THAT(refused.error().message, ::testing::Not(HasSubstr("never said")));
}

TEST(MemoryPlan, TheCacheGetsWhatItsShareLeaves) {
  EXPECT_EQ(cache_budget(140 * kGib, 120 * kGib, 0.9, 5 * kGib), 101 * kGib);
  EXPECT_EQ(cache_budget(140 * kGib, 10 * kGib, 0.9, 0), 0);  // others use more than the share
  EXPECT_EQ(cache_budget(140 * kGib, 140 * kGib, 1.0, 0), 140 * kGib);
}

TEST(GpuLimits, NameTheKeyTheValueAndTheWayOut) {
  for (const char* file : {"k31_config.json", "k3_config.json"}) {
    const Result<model::Config> config = model::read_config(std::string(PERIGEE_SOURCE_DIR) + "/tests/golden/config/" + file);
    ASSERT_TRUE(config.ok()) << config.error().message;
    EXPECT_TRUE(model::check_gpu_limits(*config).ok()) << file;
    model::Config c = *config;
    c.kda_head_dim = 120;
    EXPECT_THAT(model::check_gpu_limits(c).error().message,
                AllOf(HasSubstr(file), HasSubstr("linear_attn_config.head_dim is 120"), HasSubstr("multiples of 16 up to 128"),
                      HasSubstr("use --device cpu")));
    c = *config;
    c.kda_head_dim = 256;
    EXPECT_FALSE(model::check_gpu_limits(c).ok());
    c = *config;
    c.kv_lora = 576;
    EXPECT_THAT(model::check_gpu_limits(c).error().message, HasSubstr("kv_lora_rank is 576"));
    c = *config;
    c.index_topk = 64;
    c.index_dim = 192;
    EXPECT_THAT(model::check_gpu_limits(c).error().message, HasSubstr("index_head_dim is 192"));
    c = *config;
    c.experts = 2048;
    EXPECT_THAT(model::check_gpu_limits(c).error().message, HasSubstr("num_experts is 2048"));
  }
}

}  // namespace
}  // namespace perigee::engine
