#include "model/capacity.h"

#include <gtest/gtest.h>

#include "model/parameters.h"

namespace perigee::model {
namespace {

Config k31() {
  const Result<Config> config = read_config(std::string(PERIGEE_SOURCE_DIR) + "/tests/golden/config/k31_config.json");
  return *config;
}

// The capacities that were published for eight H200, from the bytes of their pools.
TEST(Capacity, PublishedTokensFromPublishedPools) {
  struct Case {
    LatentFormat latent;
    int64_t context_ranks;
    double pool;
    double tokens;
  };
  const Case cases[] = {{LatentFormat::kFp8, 1, 51.66e9, 3.04e6},
                        {LatentFormat::kNvfp4, 1, 52.16e9, 4.49e6},
                        {LatentFormat::kFp8, 8, 46.30e9, 21.8e6},
                        {LatentFormat::kNvfp4, 8, 46.61e9, 32.1e6}};
  for (const Case& c : cases) {
    CapacityOptions o;
    o.formats = {c.latent, KeyFormat::kFp8};
    o.tensor_ranks = 8;
    o.context_ranks = c.context_ranks;
    o.pool_bytes = static_cast<int64_t>(c.pool);
    const Result<Capacity> capacity = plan_capacity(k31(), o);
    ASSERT_TRUE(capacity.ok());
    EXPECT_NEAR(static_cast<double>(capacity->tokens), c.tokens, 0.004 * c.tokens);
    EXPECT_EQ(capacity->layout.block_tokens(), 2048);
  }
}

TEST(Capacity, ADeviceHoldsWhatWeightsAndBuffersLeave) {
  CapacityOptions o;
  o.formats = {LatentFormat::kFp8, KeyFormat::kFp8};
  o.tensor_ranks = 16;
  o.device_bytes = int64_t{140} << 30;
  const Result<Capacity> capacity = plan_capacity(k31(), o);
  ASSERT_TRUE(capacity.ok());
  EXPECT_EQ(capacity->layout.block_tokens(), 1024);
  const int64_t all = inspect(k31()).text_bytes;
  EXPECT_GT(capacity->weight_bytes, all / 16);
  EXPECT_LT(capacity->weight_bytes, all / 16 + int64_t{12'000'000'000});  // what every rank holds: embeddings, low-rank inputs
  CapacityOptions whole = o;
  whole.tensor_ranks = 1;
  whole.pool_bytes = 1e9;
  EXPECT_EQ(plan_capacity(k31(), whole)->weight_bytes, all);
  const int64_t used = capacity->rows * capacity->layout.rows.row_bytes + capacity->weight_bytes +
                       capacity->open_chunk_bytes + capacity->workspace_bytes;
  EXPECT_LE(used, static_cast<int64_t>(0.9 * static_cast<double>(o.device_bytes)));
  EXPECT_GT(used + capacity->layout.rows.row_bytes, static_cast<int64_t>(0.9 * static_cast<double>(o.device_bytes)));
  EXPECT_EQ(capacity->open_chunk_bytes, 64 * capacity->layout.slot_bytes);
}

TEST(Capacity, RefusesRanksThatDoNotDivide) {
  CapacityOptions o;
  o.formats = {LatentFormat::kFp8, KeyFormat::kFp8};
  o.pool_bytes = 1e9;
  o.tensor_ranks = 7;
  EXPECT_NE(plan_capacity(k31(), o).error().message.find("--tensor-parallel-size"), std::string::npos);
  o.tensor_ranks = 8;
  o.context_ranks = 3;
  EXPECT_NE(plan_capacity(k31(), o).error().message.find("--decode-context-parallel-size"), std::string::npos);
  o.context_ranks = 1;
  o.max_model_len = int64_t{1} << 30;
  EXPECT_NE(plan_capacity(k31(), o).error().message.find("--max-model-len"), std::string::npos);
  o.max_model_len = 0;
  o.pool_bytes = 0;
  o.device_bytes = 80e9;
  EXPECT_NE(plan_capacity(k31(), o).error().message.find("no row"), std::string::npos);
}

}  // namespace
}  // namespace perigee::model
