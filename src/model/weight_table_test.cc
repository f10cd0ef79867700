#include "model/weight_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "base/file.h"
#include "model/parameters.h"

namespace perigee::model {
namespace {

using nlohmann::json;

const std::string kGolden = std::string(PERIGEE_SOURCE_DIR) + "/tests/golden/config/";

Config golden(const std::string& name) {
  const Result<Config> config = read_config(kGolden + name + ".json");
  CHECK(config.ok());
  return *config;
}

int64_t bytes_per_token(const Inspection& i, const std::string& latent, const std::string& key) {
  for (const TokenBytes& t : i.token_bytes) {
    if (t.latent == latent && t.key == key) return t.bytes();
  }
  return -1;
}

TEST(WeightTable, GivesThePublishedNumbersOfKimiK3) {
  const Inspection i = inspect(golden("k3_config"));
  EXPECT_EQ(i.tensors, 497220);
  EXPECT_EQ(i.bytes, 1560860324864);
  EXPECT_EQ(i.parameters, 2779484478208);
  EXPECT_EQ(i.active_parameters, 104189614848);
  EXPECT_EQ(i.vision_tensors, 168);
  EXPECT_EQ(i.vision_parameters, 401214464 + 46144512);
  EXPECT_EQ(i.kda_state_bytes, 449372160);
  EXPECT_EQ(bytes_per_token(i, "fp8", ""), 13824);
  EXPECT_EQ(bytes_per_token(i, "bf16", ""), 27648);
}

TEST(WeightTable, GivesTheCacheBytesOfKimiK31) {
  const Inspection i = inspect(golden("k31_config"));
  EXPECT_EQ(bytes_per_token(i, "fp8", "fp8"), 16992);
  EXPECT_EQ(bytes_per_token(i, "nvfp4", "mxfp4"), 10080);
  EXPECT_EQ(i.token_bytes.size(), 9u);
}

// Counts that the independent table of tools/reference arrived at.
TEST(WeightTable, AgreesWithTheReferenceTable) {
  const json expected = json::parse(*read_file(kGolden + "expected.json"));
  ASSERT_EQ(expected.size(), 3u);
  for (const auto& [name, e] : expected.items()) {
    const Inspection i = inspect(golden(name));
    EXPECT_EQ(i.parameters, e["text_parameters"]) << name;
    EXPECT_EQ(i.active_parameters, e["active_parameters"]) << name;
    EXPECT_EQ(i.text_tensors, e["text_tensors"]) << name;
    EXPECT_EQ(i.vision_tensors, e.value("vision_tensors", 0)) << name;
    EXPECT_EQ(i.config.count(LayerKind::kKda), e["kda_layers"]) << name;
    for (const TokenBytes& t : i.token_bytes) {
      EXPECT_EQ(t.latent_bytes, e["latent_bytes_per_token"][t.latent]) << name;
      const json keys = e.value("key_bytes_per_token", json{{"", 0}});
      EXPECT_EQ(t.key_bytes, keys[t.key]) << name;
    }
  }
}

TEST(WeightTable, NamesEachTensorOnceAndFillsEachDestinationWhole) {
  for (const char* name : {"k3_config", "k31_config", "kimi_linear_config"}) {
    std::set<std::string> names;
    std::set<std::string> patterns;
    int64_t filled = 0, total = 0;  // rows of the current destination
    for (const TensorRow& row : weight_table(golden(name))) {
      EXPECT_TRUE(names.insert(expand(row.name, row.layer, 0)).second) << row.name;
      EXPECT_EQ(row.copies > 1, row.name.find("{E}") != std::string::npos) << row.name;
      EXPECT_EQ(row.layer >= 0, row.name.find("{L}") != std::string::npos) << row.name;
      if (row.pack == Pack::kScales || row.pack == Pack::kMixerQuery) continue;
      if (row.row_offset == 0) {
        EXPECT_EQ(filled, total) << row.name;
        filled = 0;
        total = row.rows_total;
      }
      EXPECT_EQ(row.row_offset, filled) << row.name;
      EXPECT_EQ(row.rows_total, total) << row.name;
      filled += row.n;
    }
    EXPECT_EQ(filled, total);
  }
}

TEST(WeightTable, TiedEmbeddingsAreOneTensor) {
  Config config = golden("kimi_linear_config");
  const Inspection apart = inspect(config);
  config.tied_embeddings = true;
  const Inspection tied = inspect(config);
  EXPECT_EQ(tied.text_tensors, apart.text_tensors - 1);
  EXPECT_EQ(tied.parameters, apart.parameters - config.vocab * config.hidden);
  EXPECT_EQ(tied.active_parameters, apart.active_parameters);
}

TEST(Inspect, PrintsTextAndJson) {
  const Inspection i = inspect(golden("k31_config"));
  const std::string text = inspect_text(i);
  EXPECT_THAT(text, ::testing::HasSubstr("Kimi K3.1"));
  EXPECT_THAT(text, ::testing::HasSubstr("16,992 bytes with fp8 latents, fp8 keys"));
  const json out = json::parse(inspect_json(i));
  EXPECT_EQ(out["kind"], "k31");
  EXPECT_EQ(out["tensors"], 497340);
  EXPECT_EQ(out["kv_bytes_per_token"].size(), 9u);
  const json linear = json::parse(inspect_json(inspect(golden("kimi_linear_config"))));
  EXPECT_TRUE(linear["kv_bytes_per_token"][0]["key"].is_null());
}

}  // namespace
}  // namespace perigee::model
