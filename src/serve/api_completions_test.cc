#include <gtest/gtest.h>

#include "serve/testing.h"

namespace perigee::serve {
namespace {

using engine::RequestEnd;
using namespace testing;

constexpr const char* kPath = "/v1/completions";

std::vector<int32_t> word_ids(std::string_view text) {
  return text::testing::demo_tokenizer().encode_text(text);
}
std::string list_of(const std::vector<int32_t>& ids) {
  std::string out = "[";
  for (size_t i = 0; i < ids.size(); ++i) out += (i > 0 ? "," : "") + std::to_string(ids[i]);
  return out + "]";
}

TEST(Completions, TextPromptsIdsAndListsOfBothAreTaken) {
  ApiBench bench;
  bench.answer(" there<|end_of_msg|>");
  const std::vector<int32_t> ids = word_ids("Hello");
  for (const std::string& prompt :
       {std::string("\"Hello\""), std::string("[\"Hello\"]"), list_of(ids), "[" + list_of(ids) + "]"}) {
    bench.backend.forget();
    const Json reply = bench.post_json(kPath, "{\"prompt\":" + prompt + "}");
    EXPECT_EQ(text_at(reply, "choices.0.text"), " there") << prompt;
    EXPECT_EQ(text_at(reply, "choices.0.finish_reason"), "stop");
    EXPECT_EQ(bench.backend.request(0).prompt, ids);
  }
  const Json two = bench.post_json(kPath, R"({"prompt":["Hello","Bye"],"n":2})");
  EXPECT_EQ(at(two, "choices").items().size(), 4u);
  EXPECT_EQ(at(two, "usage.prompt_tokens").as_int64().value(),
            static_cast<int64_t>(word_ids("Hello").size() + word_ids("Bye").size()));
}

TEST(Completions, EmptyPromptsAndIdsOutOfRangeAreRefused) {
  ApiBench bench;
  for (const char* prompt :
       {"\"\"", "[]", "[[]]", "[\"\"]", "[-1]", "[99999999]", "[1.5]", "{}", "null", "[[1],\"a\",3]"}) {
    const auto reply = bench.post(kPath, std::string("{\"prompt\":") + prompt + "}");
    EXPECT_EQ(reply->status(), 400) << prompt;
    EXPECT_EQ(text_at(json_of(reply->body()), "error.param"), "prompt") << reply->body();
  }
  EXPECT_EQ(bench.backend.requests(), 0u);
}

TEST(Completions, EchoWithLogprobsScoresThePromptAsHarnessesAsk) {
  ApiBench bench;
  bench.answer("x", RequestEnd::kLength);
  const std::vector<int32_t> ids = word_ids("The cat sat on the mat");
  for (const char* max_tokens : {"1", "0"}) {
    bench.backend.forget();
    const Json reply = bench.post_json(
        kPath, "{\"prompt\":[" + list_of(ids) +
                   "],\"echo\":true,\"logprobs\":2,\"temperature\":0,\"seed\":1,\"max_tokens\":" + max_tokens + "}");
    const size_t made = max_tokens[0] == '1' ? 1 : 0;
    EXPECT_EQ(text_at(reply, "choices.0.text"), std::string("The cat sat on the mat") + (made == 1 ? "x" : ""));
    const Json logprobs = at(reply, "choices.0.logprobs");
    for (const char* list : {"tokens", "token_logprobs", "top_logprobs", "text_offset"}) {
      EXPECT_EQ(at(logprobs, list).items().size(), ids.size() + made) << list;
    }
    EXPECT_TRUE(at(logprobs, "token_logprobs.0").is_null());
    EXPECT_TRUE(at(logprobs, "top_logprobs.0").is_null());
    EXPECT_EQ(at(logprobs, "token_logprobs.1").as_double(), -0.5);
    EXPECT_EQ(at(logprobs, "text_offset.1").as_double(), static_cast<double>(text_at(logprobs, "tokens.0").size()));
    EXPECT_EQ(at(logprobs, "top_logprobs.1").members().size(), 2u);
    EXPECT_EQ(at(logprobs, "top_logprobs.1").members()[0].first, text_at(logprobs, "tokens.1"));
    EXPECT_EQ(at(reply, "usage.completion_tokens").as_double(), static_cast<double>(made));
    EXPECT_EQ(bench.backend.request(0).prompt_logprobs, 2);
  }
  EXPECT_EQ(bench.post(kPath, R"({"prompt":"a","max_tokens":0})")->status(), 400);
}

TEST(Completions, StopStringsStreamAndEnd) {
  ApiBench bench;
  bench.answer("one two three four");
  const Json whole = bench.post_json(kPath, R"({"prompt":"a","stop":["o thr"]})");
  EXPECT_EQ(text_at(whole, "choices.0.text"), "one tw");
  std::string text;
  for (const Json& event : events_of(bench.post(kPath, R"({"prompt":"a","stop":["o thr"],"stream":true})")->body())) {
    text += text_at(event, "choices.0.text");
  }
  EXPECT_EQ(text, "one tw");
}

TEST(Completions, SuffixBestOfAndTwoConstraintsAreRefused) {
  ApiBench bench;
  for (const char* more : {R"("suffix":"x")", R"("best_of":2)", R"("use_beam_search":true)", R"("prompt_embeds":"x")",
                           R"("structured_outputs":{"regex":"a","choice":["b"]})", R"("structured_outputs":{})",
                           R"("structured_outputs":{"regex":"a"})"}) {
    const auto reply = bench.post(kPath, std::string("{\"prompt\":\"a\",") + more + "}");
    EXPECT_EQ(reply->status(), 400) << more;
  }
}

TEST(Completions, TruncationKeepsTheEndOrTheBeginning) {
  ApiBench bench;
  bench.answer("x");
  bench.post(kPath, R"({"prompt":[1,2,3,4],"truncate_prompt_tokens":2})");
  EXPECT_EQ(bench.backend.request(0).prompt, (std::vector<int32_t>{3, 4}));
  bench.post(kPath, R"({"prompt":[1,2,3,4],"truncate_prompt_tokens":2,"truncation_side":"right"})");
  EXPECT_EQ(bench.backend.request(1).prompt, (std::vector<int32_t>{1, 2}));
}

TEST(Generate, TokensGoInAndComeOut) {
  ApiBench bench;
  bench.answer("ab cd<|end_of_msg|>");
  const std::vector<int32_t> ids = ApiBench::ids("ab cd<|end_of_msg|>");
  const Json reply =
      bench.post_json("/inference/v1/generate",
                      R"({"token_ids":[1,2,3],"sampling_params":{"max_tokens":9,"logprobs":1,"temperature":0.5}})");
  EXPECT_EQ(text_at(reply, "choices.0.token_ids"), text::print_json(json_of(list_of(ids))));
  EXPECT_EQ(at(reply, "choices.0.logprobs.content").items().size(), ids.size());
  EXPECT_EQ(bench.backend.request(0).prompt, (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(bench.backend.request(0).max_tokens, 9);
  EXPECT_EQ(bench.backend.request(0).sampling.temperature, 0.5);
  const auto stopped =
      bench.post_json("/inference/v1/generate", R"({"token_ids":[1],"sampling_params":{"stop":"b c"}})");
  EXPECT_EQ(text_at(stopped, "choices.0.stop_reason"), "b c") << "stop strings hold without text too";
  bool done = false;
  const auto stream = bench.post("/inference/v1/generate", R"({"token_ids":[1],"stream":true})");
  size_t tokens = 0;
  for (const Json& event : events_of(stream->body(), &done)) tokens += at(event, "choices.0.token_ids").items().size();
  EXPECT_EQ(tokens, ids.size());
  EXPECT_TRUE(done);
  EXPECT_EQ(bench.post("/inference/v1/generate", R"({"token_ids":[99999999]})")->status(), 400);
  EXPECT_EQ(bench.post("/inference/v1/generate", R"({"token_ids":[]})")->status(), 400);
}

TEST(Models, AreListedAndUnknownOnesAre404) {
  ApiBench bench;
  EXPECT_EQ(text_at(json_of(bench.send("GET", "/v1/models")->body()), "data.0.id"), "demo");
  EXPECT_EQ(text_at(json_of(bench.send("GET", "/v1/models/demo")->body()), "id"), "demo");
  EXPECT_EQ(bench.send("GET", "/v1/models/other")->status(), 404);
  EXPECT_EQ(bench.send("GET", "/v1/models/other/one")->status(), 404);
  EXPECT_EQ(bench.post(kPath, R"({"prompt":"a","model":"other"})")->status(), 404);
}

TEST(Tokens, RoundTripAndShowTheTokenizer) {
  ApiBench bench;
  const Json tokens = bench.post_json("/tokenize", R"({"prompt":"Hello <|open|>","return_token_strs":true})");
  EXPECT_EQ(at(tokens, "count").as_double(), static_cast<double>(at(tokens, "token_strs").items().size()));
  const Json back = bench.post_json("/detokenize", "{\"tokens\":" + text_at(tokens, "tokens") + "}");
  EXPECT_EQ(text_at(back, "prompt"), "Hello <|open|>");
  for (const Json& id : at(tokens, "tokens").items()) {
    EXPECT_FALSE(text::testing::demo_tokenizer().is_special(static_cast<int32_t>(id.as_int64().value())));
  }
  const Json chat = bench.post_json("/tokenize", R"({"messages":[{"role":"user","content":"Hi"}]})");
  EXPECT_GT(at(chat, "count").as_double(), 10);
  EXPECT_EQ(bench.post("/detokenize", R"({"tokens":[-5]})")->status(), 400);
  EXPECT_FALSE(at(json_of(bench.send("GET", "/tokenizer_info")->body()), "special_tokens").members().empty());
}

TEST(Tokens, EachEndIdIsNamedOnce) {
  const int32_t end = ApiBench::ids("<|end_of_msg|>")[0];
  for (const std::vector<int32_t>& own : {std::vector<int32_t>{}, {end}, {5, end}, {5}}) {
    ApiOptions options = default_options();
    options.end_ids = own;
    ApiBench bench(std::move(options));
    const Json info = json_of(bench.send("GET", "/tokenizer_info")->body());
    const bool has_five = !own.empty() && own[0] == 5;
    EXPECT_EQ(text_at(info, "eos_token_ids"), fmt::format("[{}{}]", has_five ? "5, " : "", end));
  }
}

}  // namespace
}  // namespace perigee::serve
