// What the indexer selects, against the independent reference: with BF16 keys the sets agree wherever the reference's
// margin exceeds what BF16 rounding alone can move (the slack that an emulation of the rounding points measured).
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "model/decoder.h"

namespace perigee::model {
namespace {

constexpr double kSlackFactor = 1.5;  // the engine sums in another order than the emulation

struct Selected {
  int64_t mla_index;
  int64_t row;
  std::vector<int32_t> positions;
};

// Every row's selection of one forward pass over all ids.
std::vector<Selected> run(const std::string& folder, tensor::Device device, CacheFormats formats,
                          const std::vector<int32_t>& ids) {
  ThreadPool pool(2);
  const ops::Context context = ops::make_context(device, &pool);
  const Result<Config> config = read_config(folder);
  if (!config.ok()) ADD_FAILURE() << config.error().message;
  Result<Weights> weights = load_weights(context, *config, folder, {});
  if (!weights.ok()) ADD_FAILURE() << weights.error().message;
  const int64_t n = static_cast<int64_t>(ids.size());
  Result<std::unique_ptr<StatePool>> states = StatePool::for_lengths(*config, context.mover(), formats, {n});
  Result<std::unique_ptr<Decoder>> decoder = Decoder::create(context, *config, *weights, n, n);
  std::vector<Selected> out;
  Taps taps;
  taps.selected = [&](int64_t index, const ops::Selection& s) {
    for (int64_t t = 0; t < n; ++t) {
      const int32_t* list = s.positions.row<int32_t>(t);
      out.push_back({index, t, {list, list + *s.counts.row<int32_t>(t)}});
    }
  };
  (*decoder)->set_taps(taps);
  Step step;
  step.append(&(*states)->sequence(0), ids);
  (*decoder)->forward(step);
  return out;
}

class Selection : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string path = std::string(PERIGEE_SOURCE_DIR) + "/tests/golden/model/" + GetParam() + ".json";
    golden_ = nlohmann::json::parse(*read_file(path));
    folder_ = std::string(PERIGEE_GOLDEN_MODELS) + "/" + GetParam();
    config_ = *read_config(folder_);
  }

  // The MLA layer number that golden files count over all layers, as a number among MLA layers.
  int64_t mla_index(int64_t layer) const {
    int64_t index = 0;
    for (int64_t l = 0; l < layer; ++l) index += config_.layer_kind[static_cast<size_t>(l)] == LayerKind::kMla;
    return index;
  }

  // Compares all golden rows whose margin is above `slack`; returns how many there were.
  int compare(const std::vector<Selected>& got, double slack) const {
    int compared = 0;
    for (const auto& entry : golden_["selections"]) {
      if (entry[3].get<double>() <= slack) continue;
      const int64_t index = mla_index(entry[0]);
      for (const Selected& s : got) {
        if (s.mla_index != index || s.row != entry[1].get<int64_t>()) continue;
        EXPECT_EQ(s.positions, entry[2].get<std::vector<int32_t>>()) << "layer " << entry[0] << ", row " << s.row;
        ++compared;
      }
    }
    return compared;
  }

  nlohmann::json golden_;
  std::string folder_;
  Config config_;
};

TEST_P(Selection, ReferenceDeviceSelectsTheSameSets) {
  const std::vector<int32_t> ids = golden_["ids"];
  const auto got = run(folder_, tensor::Device::kReference, {LatentFormat::kF64, KeyFormat::kF64}, ids);
  EXPECT_EQ(compare(got, -1), static_cast<int>(golden_["selections"].size()));
}

TEST_P(Selection, CpuSelectsTheSameSetsWhereTheMarginIsAboveRounding) {
  const std::vector<int32_t> ids = golden_["ids"];
  const auto got = run(folder_, tensor::Device::kCpu, {LatentFormat::kBf16, KeyFormat::kBf16}, ids);
  const double slack = kSlackFactor * golden_["selection_slack"].get<double>();
  EXPECT_GE(compare(got, slack), 5) << "too few rows have a margin above " << slack;
}

INSTANTIATE_TEST_SUITE_P(Golden, Selection,
                         ::testing::Values("k31_base", "k31_one_index_head", "k31_hidden_100"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace perigee::model
