#include "model/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>

#include "base/memory.h"
#include "load/index.h"
#include "load/save.h"
#include "load/test_files.h"
#include "model/weight_items.h"
#include "ops/gemm/gemm.h"
#include "ops/moe_gemm/moe_gemm.h"

namespace perigee::model {
namespace {

using load::FileDType;
using load::TempFolder;
using nlohmann::json;
using tensor::Device;
using tensor::DType;
using tensor::WeightLayout;
using ::testing::AllOf;
using ::testing::HasSubstr;

const std::string kDemo = std::string(PERIGEE_SOURCE_DIR) + "/models/demo";

json spec_config(const std::string& name) {
  static const json specs =
      json::parse(*read_file(std::string(PERIGEE_SOURCE_DIR) + "/tests/golden/model/specs.json"));
  for (const json& spec : specs["specs"]) {
    if (spec["name"] == name) return spec["config"];
  }
  CHECK(false);
}

// A small checkpoint whose tensors hold bytes that differ from place to place; tests break single tensors of it.
class Checkpoint {
 public:
  struct Entry {
    FileDType dtype = FileDType::kBF16;
    std::vector<int64_t> shape;
    std::string bytes;
  };
  std::map<std::string, Entry> tensors;
  json document;
  Config config;

  explicit Checkpoint(const std::string& spec, const std::string& prefix = "language_model.")
      : document(spec_config(spec)), config(*parse_config(document.dump(), spec)) {
    uint32_t seed = 1;
    for (const TensorRow& row : weight_table(config)) {
      for (int64_t e = 0; e < row.copies; ++e) {
        Entry entry{row.dtype, row.dims, std::string(static_cast<size_t>(row.bytes()), '\0')};
        // A finite exponent in every BF16 and F32 value, and a scale byte near 127.
        for (size_t i = 0; i < entry.bytes.size(); ++i) {
          seed = seed * 1664525 + 1013904223;
          const bool top = i % (row.dtype == FileDType::kF32 ? 4 : 2) ==
                           (row.dtype == FileDType::kF32 ? 3u : 1u);
          const uint8_t byte = static_cast<uint8_t>(seed >> 24);
          const bool scale = row.pack == Pack::kScales;
          entry.bytes[i] = static_cast<char>(scale                                ? 120 + byte % 8
                                             : top && row.dtype != FileDType::kU8 ? 0x3e
                                                                                  : byte);
        }
        tensors[prefix + expand(row.name, row.layer, e)] = entry;
      }
    }
  }

  // Writes everything to one file, or to `shards` files with an index.
  void write(const TempFolder& folder, size_t shards = 1) const {
    folder.write("config.json", document.dump());
    std::vector<std::vector<load::SaveTensor>> parts(shards);
    json map = json::object();
    size_t i = 0;
    for (const auto& [name, t] : tensors) {
      const size_t shard = i++ % shards;
      parts[shard].push_back({name, t.dtype, t.shape, std::as_bytes(std::span(t.bytes))});
      map[name] = "part-" + std::to_string(shard) + ".safetensors";
    }
    for (size_t s = 0; s < shards; ++s) {
      const std::string name =
          shards == 1 ? load::kSingleFile : "part-" + std::to_string(s) + ".safetensors";
      CHECK(load::save_safetensors(folder.file(name), parts[s]).ok());
    }
    if (shards > 1) folder.write(load::kIndexFile, json{{"weight_map", map}}.dump());
  }
};

Result<Weights> load(Device device, const Config& config, const std::string& folder,
                     const LoadOptions& options = {}, int threads = 2) {
  ThreadPool pool(threads);
  return load_weights(ops::make_context(device, &pool), config, folder, options);
}

std::string refusal(const Checkpoint& checkpoint, Device device = Device::kCpu) {
  const TempFolder folder;
  checkpoint.write(folder);
  const Result<Weights> weights = load(device, checkpoint.config, folder.path());
  return weights.ok() ? "it loads" : weights.error().message;
}

// Every matrix and every vector of the model, by name of its place.
void for_each_weight(Weights& w, const Config& config,
                     const std::function<void(std::string, Weight&)>& matrix,
                     const std::function<void(std::string, Tensor&)>& vector) {
  for (const TensorRow& row : weight_table(config)) {
    if (row.row_offset != 0) continue;
    for (int64_t e = 0; e < row.copies; ++e) {
      const std::string name = expand(row.name, row.layer, e);
      if (row.matrix != nullptr) matrix(name, row.matrix(w, row.layer, e));
      if (row.tensor != nullptr) vector(name, row.tensor(w, row.layer));
    }
    if (row.pack != Pack::kHeadMatrices) continue;
    MlaWeights& mla = w.layers[static_cast<size_t>(row.layer)].mla;
    for (size_t h = 0; h < mla.key_up.size(); ++h) {
      matrix(fmt::format("layer {} key_up {}", row.layer, h), mla.key_up[h]);
      matrix(fmt::format("layer {} value_up {}", row.layer, h), mla.value_up[h]);
    }
  }
}

// The CPU's packed weights must be the reference's plain rows, packed in one call.
void expect_same_model(Weights& cpu, Weights& plain, const Config& config) {
  std::map<std::string, Weight> matrices;
  std::map<std::string, Tensor> vectors;
  for_each_weight(
      plain, config, [&](std::string name, Weight& w) { matrices[name] = w; },
      [&](std::string name, Tensor& t) { vectors[name] = t; });
  size_t seen = 0;
  for_each_weight(
      cpu, config,
      [&](std::string name, Weight& w) {
        const Weight& r = matrices.at(name);
        ASSERT_TRUE(w.n == r.n && w.k == r.k && w.n > 0) << name;
        const bool coded = w.layout == WeightLayout::kTiledMxfp4;
        ASSERT_EQ(r.layout, coded ? WeightLayout::kRowMajorMxfp4 : WeightLayout::kRowMajorBf16)
            << name;
        std::vector<uint8_t> packed(static_cast<size_t>(coded ? ops::moe_packed_bytes(WeightLayout::kTiledMxfp4, w.n, w.k)
                                                              : ops::gemm_packed_bytes(WeightLayout::kTiledBf16, w.n, w.k)));
        if (coded) {
          ops::moe_pack_mxfp4(WeightLayout::kTiledMxfp4, static_cast<const uint8_t*>(r.data), r.scales, r.n, r.k,
                              packed.data(), r.n, 0);
        } else {
          ops::gemm_pack_rows(WeightLayout::kTiledBf16, static_cast<const bf16*>(r.data), r.n, r.k, r.k, packed.data(), r.n,
                              0);
        }
        ASSERT_EQ(std::memcmp(packed.data(), w.data, packed.size()), 0) << name;
        ++seen;
      },
      [&](std::string name, Tensor& t) {
        const Tensor& r = vectors.at(name);
        ASSERT_TRUE(t.dtype == r.dtype && t.dims == r.dims && t.size() > 0) << name;
        ASSERT_EQ(std::memcmp(t.data, r.data,
                              static_cast<size_t>(t.size() * tensor::dtype_bytes(t.dtype))),
                  0)
            << name;
        ++seen;
      });
  EXPECT_EQ(seen, matrices.size() + vectors.size());
}

TEST(LoadWeights, DemoModelIsTheSameOnBothDevices) {
  const Result<Config> config = read_config(kDemo);
  ASSERT_TRUE(config.ok()) << config.error().message;
  size_t done = 0, total = 0;
  LoadOptions options;
  options.progress = [&](size_t d, size_t t) { done = d, total = t; };
  Result<Weights> cpu = load(Device::kCpu, *config, kDemo, options);
  ASSERT_TRUE(cpu.ok()) << cpu.error().message;
  EXPECT_EQ(done, total);
  EXPECT_GT(total, 20u << 20);
  EXPECT_EQ(cpu->bytes, cpu->arena.used());
  EXPECT_TRUE(cpu->files.empty());
  Result<Weights> plain = load(Device::kReference, *config, kDemo);
  ASSERT_TRUE(plain.ok()) << plain.error().message;
  expect_same_model(*cpu, *plain, *config);
  LoadOptions fast;
  fast.source = LoadOptions::Source::kFastSafetensors;
  for (const int threads : {1, 3}) {
    Result<Weights> read = load(Device::kCpu, *config, kDemo, fast, threads);
    ASSERT_TRUE(read.ok()) << read.error().message;
    expect_same_model(*read, *plain, *config);
  }
}

TEST(LoadWeights, EveryKindAndOddWidthIsTheSameOnBothDevices) {
  for (const char* spec : {"k31_hidden_100", "k31_hidden_72", "k31_two_dense", "k3_wide_heads",
                           "linear_hidden_52", "linear_q_lora"}) {
    const Checkpoint checkpoint(spec, spec[0] == 'l' ? "" : "language_model.");
    const TempFolder folder;
    checkpoint.write(folder, 3);
    Result<Weights> plain = load(Device::kReference, checkpoint.config, folder.path());
    ASSERT_TRUE(plain.ok()) << plain.error().message;
    for (const int threads : {1, 3}) {
      Result<Weights> cpu = load(Device::kCpu, checkpoint.config, folder.path(), {}, threads);
      ASSERT_TRUE(cpu.ok()) << cpu.error().message;
      expect_same_model(*cpu, *plain, checkpoint.config);
    }
  }
}

// The reference device's rows against the bytes of the file, part by part as weights.h promises them.
TEST(LoadWeights, FusedMatricesHoldTheirPartsInOrder) {
  const Checkpoint checkpoint("k31_base");
  const TempFolder folder;
  checkpoint.write(folder);
  const Config& c = checkpoint.config;
  Result<Weights> loaded = load(Device::kReference, c, folder.path());
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  const auto expect_parts = [&](const Weight& w, int64_t layer,
                                const std::vector<std::string>& names) {
    std::string bytes;
    for (const std::string& name : names) {
      bytes += checkpoint.tensors
                   .at(fmt::format("language_model.model.layers.{}.{}.weight", layer, name))
                   .bytes;
    }
    ASSERT_EQ(static_cast<int64_t>(bytes.size()), w.n * w.k * 2) << names[0];
    EXPECT_EQ(std::memcmp(bytes.data(), w.data, bytes.size()), 0) << names[0];
  };
  const LayerWeights& kda = loaded->layers[0];
  expect_parts(kda.kda.in, 0,
               {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.g_proj",
                "self_attn.f_a_proj", "self_attn.b_proj"});
  expect_parts(kda.dense.gate_up, 0, {"mlp.gate_proj", "mlp.up_proj"});
  const LayerWeights& mla = loaded->layers[3];
  expect_parts(mla.mla.in, 3,
               {"self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa", "self_attn.g_proj",
                "self_attn.indexer.wk", "self_attn.indexer.weights_proj"});
  expect_parts(
      mla.moe.shared.gate_up, 3,
      {"block_sparse_moe.shared_experts.gate_proj", "block_sparse_moe.shared_experts.up_proj"});

  std::string conv;
  for (const char* name : {"q", "k", "v"}) {
    conv += checkpoint.tensors
                .at(fmt::format("language_model.model.layers.0.self_attn.{}_conv1d.weight", name))
                .bytes;
  }
  EXPECT_EQ(kda.kda.conv.dims[0], 3 * c.kda_width());
  EXPECT_EQ(kda.kda.conv.dims[1], c.conv_width);
  EXPECT_EQ(std::memcmp(kda.kda.conv.data, conv.data(), conv.size()), 0);
  EXPECT_EQ(kda.kda.a_log.size(), c.kda_heads);

  const std::string expert = "language_model.model.layers.3.block_sparse_moe.experts.5.";
  const Weight& gate_up = mla.moe.gate_up[5];
  const std::string codes = checkpoint.tensors.at(expert + "w1.weight_packed").bytes +
                            checkpoint.tensors.at(expert + "w3.weight_packed").bytes;
  const std::string scales = checkpoint.tensors.at(expert + "w1.weight_scale").bytes +
                             checkpoint.tensors.at(expert + "w3.weight_scale").bytes;
  EXPECT_EQ(gate_up.n, 2 * c.expert_width);
  EXPECT_EQ(std::memcmp(gate_up.data, codes.data(), codes.size()), 0);
  EXPECT_EQ(std::memcmp(gate_up.scales, scales.data(), scales.size()), 0);

  const bf16* kv = reinterpret_cast<const bf16*>(
      checkpoint.tensors.at("language_model.model.layers.3.self_attn.kv_b_proj.weight")
          .bytes.data());
  for (int64_t h = 0; h < c.heads; ++h) {
    const bf16* rows = kv + h * (c.qk_nope + c.v_head) * c.kv_lora;
    const bf16* up = static_cast<const bf16*>(mla.mla.key_up[static_cast<size_t>(h)].data);
    for (int64_t i = 0; i < c.qk_nope; ++i) {
      for (int64_t j = 0; j < c.kv_lora; ++j)
        ASSERT_EQ(up[j * c.qk_nope + i].bits, rows[i * c.kv_lora + j].bits);
    }
    const Weight& value = mla.mla.value_up[static_cast<size_t>(h)];
    EXPECT_EQ(std::memcmp(value.data, rows + c.qk_nope * c.kv_lora,
                          static_cast<size_t>(c.v_head * c.kv_lora * 2)),
              0);
  }

  const auto bf16_at = [&](const std::string& name, size_t i) {
    return to_float(reinterpret_cast<const bf16*>(
        checkpoint.tensors.at("language_model." + name).bytes.data())[i]);
  };
  for (size_t i = 0; i < static_cast<size_t>(c.hidden); ++i) {
    EXPECT_EQ(mla.mlp_res.as<float>()[i], bf16_at("model.layers.3.mlp_res_norm.weight", i) *
                                              bf16_at("model.layers.3.mlp_res_proj.weight", i));
    EXPECT_EQ(loaded->final_res.as<float>()[i],
              bf16_at("model.output_attn_res_norm.weight", i) *
                  bf16_at("model.output_attn_res_proj.weight", i));
  }
}

TEST(LoadWeights, RefusesEachBrokenTensorByName) {
  const Checkpoint whole("k31_base");
  EXPECT_EQ(refusal(whole), "it loads");
  const std::string norm = "language_model.model.layers.2.input_layernorm.weight";
  for (const Device device : {Device::kCpu, Device::kReference}) {
    Checkpoint c = whole;
    c.tensors.erase(norm);
    EXPECT_THAT(
        refusal(c, device),
        AllOf(HasSubstr("model.safetensors lacks tensor model.layers.2.input_layernorm.weight"),
              HasSubstr("perigee_renames.json")));
    c = whole;
    c.tensors[norm].dtype = FileDType::kF16;
    EXPECT_THAT(refusal(c, device),
                HasSubstr("model.safetensors: tensor " + norm + " is F16, it must be BF16"));
    c = whole;
    c.tensors[norm].shape = {2, 32};
    EXPECT_THAT(refusal(c, device),
                HasSubstr("tensor " + norm + " has the shape [2, 32], config.json asks for [64]"));
    c = whole;
    c.tensors["language_model.model.extra.weight"] = c.tensors[norm];
    EXPECT_THAT(
        refusal(c, device),
        HasSubstr("holds tensor language_model.model.extra.weight, which a Kimi K3.1 model"));
    c = whole;
    c.tensors["model.layers.2.input_layernorm.weight"] = c.tensors[norm];
    EXPECT_THAT(refusal(c, device), AllOf(HasSubstr("model.layers.2.input_layernorm.weight"),
                                          HasSubstr("and again in")));
    c = whole;
    c.tensors["language_model.model.layers.1.self_attn.A_log"].shape = {1};
    c.tensors["language_model.model.layers.1.self_attn.A_log"].bytes.resize(4);
    EXPECT_THAT(refusal(c, device),
                AllOf(HasSubstr("layers.1.self_attn.A_log"), HasSubstr("fewer than 2 values")));
  }
}

TEST(LoadWeights, ExpertFormatFollowsTheConfiguration) {
  Checkpoint c("k31_base");
  const std::string name = "language_model.model.layers.1.block_sparse_moe.experts.0.w1.weight";
  c.tensors[name] = c.tensors[name + "_packed"];
  c.tensors.erase(name + "_packed");
  EXPECT_THAT(refusal(c),
              AllOf(HasSubstr("experts.0.w1.weight unpacked"), HasSubstr("mxfp4-pack-quantized")));
  Checkpoint plain("k31_base");
  plain.document["text_config"].erase("quantization_config");
  plain.config = *parse_config(plain.document.dump(), "config.json");
  EXPECT_THAT(refusal(plain),
              AllOf(HasSubstr("experts.0.w1.weight_packed"), HasSubstr("no quantization_config")));
}

TEST(LoadWeights, AcceptsWhatMayVary) {
  Checkpoint c("k31_base", "");  // names without prefix
  const auto entry = c.tensors["model.norm.weight"];
  c.tensors["vision_tower.patch_embed.proj.weight"] = entry;
  c.tensors["mm_projector.post_norm.weight"] = entry;
  c.tensors["model.layers.4.eh_proj.weight"] = entry;  // a prediction layer after the last one
  c.tensors["model.layers.0.self_attention_res_proj.weight"].shape = {64};
  auto& a_log = c.tensors["model.layers.0.self_attn.A_log"];
  a_log.shape = {1, 1, 2, 1};
  a_log.bytes.resize(8);
  EXPECT_EQ(refusal(c), "it loads");
  // BF16 where F32 is wanted is widened, which is exact.
  auto& bias = c.tensors["model.layers.0.self_attn.dt_bias"];
  bias.dtype = FileDType::kBF16;
  bias.bytes.resize(bias.bytes.size() / 2);
  for (size_t i = 0; i < bias.bytes.size(); ++i)
    bias.bytes[i] = i % 2 == 0 ? '\x80' : '\xbf';  // -1
  for (const Device device : {Device::kCpu, Device::kReference}) {
    const TempFolder folder;
    c.write(folder);
    const Result<Weights> weights = load(device, c.config, folder.path());
    ASSERT_TRUE(weights.ok()) << weights.error().message;
    EXPECT_EQ(weights->layers[0].kda.dt_bias.as<float>()[5], -1.0f);
  }
}

TEST(LoadWeights, RenamesOfACheckpoint) {
  Checkpoint c("k31_base");
  const auto rename = [&](const std::string& from, const std::string& to) {
    const std::string base = "language_model.model.layers.3.self_attn.";
    c.tensors[base + to] = c.tensors.at(base + from);
    c.tensors.erase(base + from);
  };
  rename("indexer.wq_b.weight", "dsa.q_up.weight");
  EXPECT_THAT(refusal(c), HasSubstr("lacks tensor model.layers.3.self_attn.indexer.wq_b.weight"));
  const TempFolder folder;
  c.write(folder);
  const auto with = [&](const std::string& renames) {
    folder.write(kRenamesFile, renames);
    const Result<Weights> weights = load(Device::kCpu, c.config, folder.path());
    return weights.ok() ? "it loads" : weights.error().message;
  };
  EXPECT_EQ(
      with(
          R"({"model.layers.{L}.self_attn.dsa.q_up.weight":"model.layers.{L}.self_attn.indexer.wq_b.weight"})"),
      "it loads");
  EXPECT_THAT(with(R"({"x":"model.layers.{L}.self_attn.indexer.other.weight"})"),
              AllOf(HasSubstr(kRenamesFile), HasSubstr("indexer.other")));
  EXPECT_THAT(with("[]"), HasSubstr("no JSON object of names"));
  EXPECT_THAT(with(R"({"x":1})"), HasSubstr("x must name"));
}

TEST(LoadWeights, TiedEmbeddingsFillTheHead) {
  Checkpoint c("linear_base", "");
  c.document["tie_word_embeddings"] = true;
  c.config = *parse_config(c.document.dump(), "config.json");
  EXPECT_THAT(refusal(c), HasSubstr("holds tensor lm_head.weight"));
  c.tensors.erase("lm_head.weight");
  const TempFolder folder;
  c.write(folder);
  const Result<Weights> weights = load(Device::kReference, c.config, folder.path());
  ASSERT_TRUE(weights.ok()) << weights.error().message;
  EXPECT_EQ(std::memcmp(weights->head.data, weights->embed.data,
                        static_cast<size_t>(c.config.vocab * c.config.hidden * 2)),
            0);
}

TEST(DummyWeights, DependOnSeedAndNothingElse) {
  const Config config = *parse_config(spec_config("k31_hidden_100").dump(), "config.json");
  LoadOptions options;
  options.source = LoadOptions::Source::kDummy;
  options.seed = 7;
  const std::string nowhere = "/no/such/folder";
  Result<Weights> one = load(Device::kCpu, config, nowhere, options, 1);
  ASSERT_TRUE(one.ok()) << one.error().message;
  Result<Weights> three = load(Device::kCpu, config, nowhere, options, 3);
  Result<Weights> plain = load(Device::kReference, config, nowhere, options);
  expect_same_model(*one, *plain, config);
  expect_same_model(*three, *plain, config);
  options.seed = 8;
  Result<Weights> other = load(Device::kReference, config, nowhere, options);
  EXPECT_NE(std::memcmp(plain->head.data, other->head.data,
                        static_cast<size_t>(config.vocab * config.hidden * 2)),
            0);
}

TEST(DummyWeights, HaveSensibleScales) {
  const Config config = *parse_config(spec_config("k31_base").dump(), "config.json");
  LoadOptions options;
  options.source = LoadOptions::Source::kDummy;
  Result<Weights> w = load(Device::kReference, config, "", options);
  ASSERT_TRUE(w.ok());
  const Weight& in = w->layers[0].kda.in;
  double sum = 0;
  for (int64_t i = 0; i < in.n * in.k; ++i) {
    const double x = to_float(static_cast<const bf16*>(in.data)[i]);
    sum += x * x;
  }
  EXPECT_NEAR(std::sqrt(sum / static_cast<double>(in.n)), 0.7,
              0.03);  // of an output for inputs of deviation 1
  const float values[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  const Weight& expert = w->layers[1].moe.gate_up[0];
  double expert_sum = 0;
  for (int64_t n = 0; n < expert.n; ++n) {
    for (int64_t k = 0; k < expert.k; ++k) {
      const uint8_t byte = static_cast<const uint8_t*>(expert.data)[(n * expert.k + k) / 2];
      const double scale = std::ldexp(1.0, expert.scales[(n * expert.k + k) / 32] - 127);
      expert_sum += std::pow(values[(k % 2 == 0 ? byte : byte >> 4) & 7] * scale, 2);
    }
  }
  const double deviation = std::sqrt(expert_sum / static_cast<double>(expert.n));
  EXPECT_GT(deviation, 0.7 / 1.5);  // scales are powers of two
  EXPECT_LT(deviation, 0.7 * 1.5);
}

TEST(DummyWeights, RefusesWhatNoMachineHolds) {
  json document = spec_config("k31_base");
  json& text = document["text_config"];
  text["hidden_size"] = 65536;
  text["num_hidden_layers"] = 512;
  text["num_experts"] = 8192;
  text["moe_intermediate_size"] = 4096;
  text["routed_expert_hidden_size"] = 32768;
  text["linear_attn_config"]["kda_layers"] = json::array();
  text["linear_attn_config"]["full_attn_layers"] = json::array();
  for (int l = 1; l <= 512; ++l) text["linear_attn_config"]["full_attn_layers"].push_back(l);
  const Result<Config> config = parse_config(document.dump(), "config.json");
  ASSERT_TRUE(config.ok()) << config.error().message;
  LoadOptions options;
  options.source = LoadOptions::Source::kDummy;
  const size_t before = resident_memory();
  for (const Device device : {Device::kCpu, Device::kReference}) {
    const Result<Weights> weights = load(device, *config, "big", options);
    ASSERT_FALSE(weights.ok());
    EXPECT_EQ(weights.error().code, ErrorCode::kResourceExhausted);
    EXPECT_THAT(weights.error().message,
                AllOf(HasSubstr("the weights of big need 84"), HasSubstr("GiB are free")));
  }
  EXPECT_LT(resident_memory(), before + (size_t{64} << 20));
}

}  // namespace
}  // namespace perigee::model
