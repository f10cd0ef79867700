#include "engine/record.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/file.h"

namespace perigee::engine {
namespace {

using Json = nlohmann::json;

constexpr auto kDemo = PERIGEE_SOURCE_DIR "/models/demo";

RequestRecord sample() {
  RequestRecord r;
  r.time_us = 1'767'225'599'000'001;
  r.key = 17;
  r.label = "chatcmpl-\"quoted\"";
  r.identity = {"/models/x", "cpu", "fp8", "bf16", "ab12", "cpu/y"};
  r.vocab = 100;
  r.prompt = {1, 2, 99};
  r.ids = {5, 6};
  r.logprobs = {-0.1, -std::numeric_limits<double>::infinity()};
  r.sampling.temperature = 0.1;
  r.sampling.top_p = 0.3;
  r.sampling.seed = ~uint64_t{0};
  r.sampling.logit_bias = {{3, 0.1f}, {4, -1e9f}};
  r.sampling.allowed_ids = {5, 6, 7};
  r.sampling.bad_words = {{1}, {2, 3}};
  r.stop_ids = {6, 98};
  r.max_tokens = 2;
  r.finish = RequestEnd::kStop;
  r.constrained = true;
  return r;
}

void expect_equal(const RequestRecord& a, const RequestRecord& b) {
  const auto bits = [](const std::vector<double>& list) {
    std::vector<uint64_t> out;
    for (const double x : list) out.push_back(std::bit_cast<uint64_t>(x));
    return out;
  };
  const auto whole = [](const RequestRecord& r) {
    return std::tie(r.time_us, r.key, r.label, r.identity, r.vocab, r.prompt, r.ids, r.stop_ids, r.max_tokens, r.finish,
                    r.constrained);
  };
  const auto wishes = [](const TokenSampling& s) {
    return std::tie(s.temperature, s.top_p, s.min_p, s.top_k, s.seed, s.choice, s.repetition_penalty, s.presence_penalty,
                    s.frequency_penalty, s.logit_bias, s.allowed_ids, s.bad_words, s.min_tokens);
  };
  EXPECT_TRUE(whole(a) == whole(b));
  EXPECT_TRUE(wishes(a.sampling) == wishes(b.sampling));
  EXPECT_EQ(bits(a.logprobs), bits(b.logprobs));
}

std::string refusal(const std::string& text) {
  const Result<RequestRecord> r = from_json(text, "r.json");
  EXPECT_FALSE(r.ok()) << text;
  return r.ok() ? std::string() : r.error().message;
}

TEST(Record, ReadsBackEqual) {
  const Result<RequestRecord> back = from_json(to_json(sample()), "r.json");
  ASSERT_TRUE(back.ok()) << back.error().message;
  expect_equal(*back, sample());
}

RC_GTEST_PROP(Record, AnyNumbersReadBackEqual, ()) {
  RequestRecord r = sample();
  r.vocab = std::numeric_limits<int32_t>::max();
  const auto id = rc::gen::inRange<int32_t>(0, std::numeric_limits<int32_t>::max());
  r.prompt = *rc::gen::nonEmpty(rc::gen::container<std::vector<int32_t>>(id));
  r.ids = *rc::gen::nonEmpty(rc::gen::container<std::vector<int32_t>>(id));
  r.max_tokens = static_cast<int64_t>(r.ids.size());
  r.logprobs.clear();
  for (size_t i = 0; i < r.ids.size(); ++i) r.logprobs.push_back(std::bit_cast<double>(*rc::gen::arbitrary<uint64_t>()));
  r.sampling.seed = *rc::gen::arbitrary<uint64_t>();
  r.sampling.temperature = std::abs(*rc::gen::arbitrary<float>()) / 3.0;
  r.sampling.presence_penalty = *rc::gen::arbitrary<float>() / 7.0;
  r.sampling.logit_bias = {{*id, *rc::gen::arbitrary<float>()}};
  r.label = *rc::gen::container<std::string>(rc::gen::inRange<char>(1, 127));
  const Result<RequestRecord> back = from_json(to_json(r), "r.json");
  RC_ASSERT(back.ok());
  expect_equal(*back, r);
}

TEST(Record, EveryTruncationIsRefused) {
  const std::string text = to_json(sample());
  for (size_t n = 0; n + 2 < text.size(); ++n) {
    ASSERT_EQ(refusal(text.substr(0, n)), "r.json is no JSON, or its end is missing") << n;
  }
}

TEST(Record, WhatIsNoRecordIsRefused) {
  EXPECT_EQ(refusal("hello"), "r.json is no JSON, or its end is missing");
  EXPECT_EQ(refusal("[1]"), "r.json is no record: an object is needed");
  EXPECT_EQ(refusal("{}"), "r.json is no record: field perigee_record is missing");
  EXPECT_EQ(refusal(R"({"perigee_record": 2})"), "r.json: field perigee_record is 2; this program reads records of version 1");
  EXPECT_EQ(refusal(R"({"perigee_record": "1"})"),
            "r.json: field perigee_record is \"1\"; this program reads records of version 1");
}

// Every field is needed, and none may be of another kind.
TEST(Record, EveryFieldIsNeeded) {
  const Json whole = Json::parse(to_json(sample()));
  const auto try_all = [](const Json& object, const std::function<std::string(const Json&)>& text) {
    for (const auto& [name, value] : object.items()) {
      Json without = object;
      without.erase(name);
      EXPECT_NE(refusal(text(without)).find(name), std::string::npos) << name;
      Json other = object;
      other[name] = nullptr;
      EXPECT_NE(refusal(text(other)).find(name), std::string::npos) << name;
      other[name] = Json::object({{"a", 1}});
      if (name != "sampling") {
        EXPECT_NE(refusal(text(other)).find(name), std::string::npos) << name;
      }
    }
  };
  try_all(whole, [](const Json& j) { return j.dump(); });
  try_all(whole["sampling"], [&](const Json& s) {
    Json j = whole;
    j["sampling"] = s;
    return j.dump();
  });
}

TEST(Record, ValuesOutOfRangeAreRefusedByName) {
  const Json whole = Json::parse(to_json(sample()));
  const auto with = [&](const std::string& pointer, const Json& value) {
    Json j = whole;
    j[Json::json_pointer(pointer)] = value;
    return refusal(j.dump());
  };
  EXPECT_EQ(with("/prompt_ids/1", 100), "r.json: field prompt_ids: entry 1 is no token id below the vocabulary of 100");
  EXPECT_EQ(with("/prompt_ids/0", -1), "r.json: field prompt_ids: entry 0 is no token id below the vocabulary of 100");
  EXPECT_EQ(with("/ids/1", 1.5), "r.json: field ids: entry 1 is no token id below the vocabulary of 100");
  EXPECT_EQ(with("/ids/0", uint64_t{1} << 63), "r.json: field ids: entry 0 is no token id below the vocabulary of 100");
  EXPECT_EQ(with("/stop_ids/0", "6"), "r.json: field stop_ids: entry 0 is no token id below the vocabulary of 100");
  EXPECT_EQ(with("/sampling/bad_words/1/1", 100),
            "r.json, sampling: field bad_words: entry 1 is no token id below the vocabulary of 100");
  EXPECT_EQ(with("/sampling/bad_words/0", Json::array()), "r.json, sampling: field bad_words: entry 0 is no array of token ids");
  EXPECT_EQ(with("/sampling/logit_bias/0", Json::array({3})),
            "r.json, sampling: field logit_bias: entry 0 is no pair of a token id and a number");
  EXPECT_EQ(with("/logprob_bits/1", "bfb99999999999"), "r.json: field logprob_bits: entry 1 is no string of 16 hex digits");
  EXPECT_EQ(with("/logprob_bits/1", "bfb999999999999g"), "r.json: field logprob_bits: entry 1 is no string of 16 hex digits");
  EXPECT_EQ(with("/logprob_bits", Json::array()), "r.json: field logprob_bits has 0 entries, field ids has 2");
  EXPECT_EQ(with("/prompt_ids", Json::array()), "r.json: field prompt_ids is empty");
  EXPECT_EQ(with("/max_tokens", 1), "r.json: field ids has 2 entries, max_tokens is 1");
  EXPECT_EQ(with("/finish", "abort"), "r.json: field finish is 'abort'; use stop, length");
  EXPECT_EQ(with("/device", "tpu"), "r.json: field device is 'tpu'; use cpu, cuda, reference");
  EXPECT_NE(with("/sampling/temperature", -1).find("field temperature must be a number from 0"), std::string::npos);
  EXPECT_NE(with("/time_us", uint64_t{1} << 63).find("field time_us must be an integer"), std::string::npos);
}

// A fresh folder that goes at the end.
class Folder {
 public:
  Folder() : path_(std::filesystem::temp_directory_path() / "perigee-record-XXXXXX") {
    std::string text = path_.string();
    CHECK(mkdtemp(text.data()) != nullptr);
    path_ = text;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string path() const { return path_.string(); }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }

 private:
  std::filesystem::path path_;
};

TEST(RecordWriter, WritesAllThatWasPushedBeforeItEnds) {
  const Folder folder;
  {
    RecordWriter writer(folder.path(), [](const std::string& why) { ADD_FAILURE() << why; });
    for (uint64_t key = 0; key < 50; ++key) {
      RequestRecord r = sample();
      r.key = key;
      writer.push(std::move(r));
    }
  }
  const std::vector<std::string> names = folder.files();
  ASSERT_EQ(names.size(), 50U);
  EXPECT_EQ(names[0], "20251231T235959.000001Z-0.json");
  for (const std::string& name : names) {
    const Result<std::string> text = read_file(folder.path() + "/" + name);
    ASSERT_TRUE(text.ok());
    EXPECT_TRUE(from_json(*text, name).ok()) << name;
  }
}

TEST(RecordWriter, FailuresAreToldOnce) {
  std::vector<std::string> told;
  {
    RecordWriter writer("/nowhere/at/all", [&](const std::string& why) { told.push_back(why); });
    for (int i = 0; i < 3; ++i) writer.push(sample());
  }
  ASSERT_EQ(told.size(), 1U);
  EXPECT_NE(told[0].find("/nowhere/at/all"), std::string::npos);
}

TEST(RecordFolder, MustExistAndBeAFolder) {
  const Folder folder;
  EXPECT_TRUE(check_record_folder(folder.path(), "--record").ok());
  EXPECT_EQ(check_record_folder(folder.path() + "/none", "--record").error().message,
            "--record " + folder.path() + "/none: No such file or directory; give a folder that exists");
  ASSERT_TRUE(write_file(folder.path() + "/file", "x").ok());
  EXPECT_EQ(check_record_folder(folder.path() + "/file", "--record").error().message,
            "--record " + folder.path() + "/file is no folder");
}

// A copy of the demo model with one byte changed, `from_end` bytes before its end.
std::string changed_digest(size_t from_end, uint64_t whole_bytes_max) {
  const Folder folder;
  std::string text = std::move(read_file(std::string(kDemo) + "/model.safetensors")).value();
  if (from_end > 0) text[text.size() - from_end] = static_cast<char>(text[text.size() - from_end] ^ 1);
  CHECK(write_file(folder.path() + "/model.safetensors", text).ok());
  std::filesystem::copy(std::string(kDemo) + "/config.json", folder.path());
  return std::move(weights_digest(folder.path(), {}, whole_bytes_max)).value();
}

TEST(WeightsDigest, OneChangedByteIsAnotherDigest) {
  const std::string whole = std::move(weights_digest(kDemo, {})).value();
  EXPECT_EQ(whole.size(), 64U);
  EXPECT_EQ(changed_digest(0, kWholeBytesMax), whole);
  EXPECT_NE(changed_digest(1, kWholeBytesMax), whole);
  EXPECT_NE(changed_digest(1'000'000, kWholeBytesMax), whole);
  const std::string pieces = std::move(weights_digest(kDemo, {}, 0)).value();
  EXPECT_NE(pieces, whole);
  EXPECT_EQ(changed_digest(0, 0), pieces);
  EXPECT_NE(changed_digest(1, 0), pieces);  // the end of the last tensor is always read
}

TEST(WeightsDigest, DummyWeightsAreNamedByTheirSeed) {
  model::LoadOptions load;
  load.source = model::LoadOptions::Source::kDummy;
  const std::string zero = std::move(weights_digest(kDemo, load)).value();
  load.seed = 1;
  EXPECT_NE(std::move(weights_digest(kDemo, load)).value(), zero);
  EXPECT_FALSE(weights_digest("/nowhere", load).ok());
}

TEST(Identity, TheFirstDifferenceIsNamed) {
  const ModelIdentity a = sample().identity;
  EXPECT_TRUE(check_same(a, a, "r.json").ok());
  ModelIdentity b = a;
  b.model = "/elsewhere";
  EXPECT_TRUE(check_same(a, b, "r.json").ok());
  b.key_format = "fp8";
  b.weights = "cd34";
  EXPECT_EQ(check_same(a, b, "r.json").error().message,
            "r.json was made with index key format bf16, this run has fp8; --force replays it all the same");
  b.key_format = a.key_format;
  EXPECT_EQ(check_same(a, b, "r.json").error().message,
            "r.json was made with weights of digest ab12, this run has cd34; --force replays it all the same");
}

}  // namespace
}  // namespace perigee::engine
