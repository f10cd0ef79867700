// What a request may ask for: every refusal names its field, and what is accepted reaches the engine.
#include <gtest/gtest.h>

#include <cmath>

#include "serve/api_json.h"
#include "serve/testing.h"

namespace perigee::serve {
namespace {

using namespace testing;

constexpr const char* kChat = "/v1/chat/completions";
constexpr const char* kAnswer = "T<|close|>think<|sep|><|open|>response<|sep|>Hi<|end_of_msg|>";
constexpr const char* kTool = R"({"type":"function","function":{"name":"find","parameters":{"type":"object"}}})";

std::string ask(const std::string& more) {
  return R"({"messages":[{"role":"user","content":"Hi"}],)" + more + "}";
}

struct Refusal {
  std::string more;
  std::string param;
};

TEST(Rules, EveryRefusalIsA400ThatNamesItsField) {
  std::string stops = "[";
  for (int i = 0; i < 17; ++i) stops += (i > 0 ? "," : "") + std::string("\"s") + std::to_string(i) + "\"";
  const std::vector<Refusal> refusals = {
      {R"("stream_options":{})", "stream_options"},
      {R"("stream":1)", "stream"},
      {R"("stream":true,"stream_options":{"include_usage":"yes"})", "stream_options.include_usage"},
      {R"("top_logprobs":2)", "top_logprobs"},
      {R"("logprobs":true,"top_logprobs":21)", "top_logprobs"},
      {R"("logprobs":true,"top_logprobs":-2)", "top_logprobs"},
      {R"("logprobs":true,"top_logprobs":-1)", "top_logprobs"},
      {R"("logprobs":5)", "logprobs"},
      {R"("prompt_logprobs":1,"stream":true)", "prompt_logprobs"},
      {R"("prompt_logprobs":-3)", "prompt_logprobs"},
      {R"("prompt_logprobs":"x")", "prompt_logprobs"},
      {R"("n":0)", "n"},
      {R"("n":65)", "n"},
      {R"("n":1.5)", "n"},
      {R"("n":16384)", "n"},
      {R"("temperature":-0.1)", "temperature"},
      {R"("temperature":"hot")", "temperature"},
      {R"("top_p":0)", "top_p"},
      {R"("top_p":1.1)", "top_p"},
      {R"("min_p":2)", "min_p"},
      {R"("top_k":-2)", "top_k"},
      {R"("presence_penalty":3)", "presence_penalty"},
      {R"("frequency_penalty":-3)", "frequency_penalty"},
      {R"("repetition_penalty":0)", "repetition_penalty"},
      {R"("max_tokens":0)", "max_tokens"},
      {R"("max_completion_tokens":-1)", "max_completion_tokens"},
      {R"("min_tokens":9,"max_tokens":3)", "min_tokens"},
      {R"("seed":"x")", "seed"},
      {R"("seed":99999999999999999999)", "seed"},
      {"\"stop\":" + stops + "]", "stop"},
      {"\"stop\":\"" + std::string(1025, 'x') + "\"", "stop"},
      {R"("stop":"")", "stop"},
      {R"("stop":[1])", "stop"},
      {R"("stop_token_ids":[99999999])", "stop_token_ids"},
      {R"("allowed_token_ids":[-1])", "allowed_token_ids"},
      {R"("logit_bias":{"99999999":1})", "logit_bias"},
      {R"("logit_bias":{"x":1})", "logit_bias"},
      {R"("logit_bias":{"1":101})", "logit_bias"},
      {R"("logit_bias":[1])", "logit_bias"},
      {R"("bad_words":[""])", "bad_words"},
      {R"("cache_salt":"")", "cache_salt"},
      {R"("priority":"high")", "priority"},
      {R"("use_beam_search":true)", "use_beam_search"},
      {R"("best_of":2)", "best_of"},
      {R"("echo":true)", "echo"},
      {R"("documents":[{}])", "documents"},
      {R"("chat_template":"{{x}}")", "chat_template"},
      {R"("structured_outputs":"a")", "structured_outputs"},
      {R"("structured_outputs":{})", "structured_outputs.json"},
      {R"("structured_outputs":{"regex":"a","choice":["b"]})", "structured_outputs.choice"},
      {R"("structured_outputs":{"regex":""})", "structured_outputs.regex"},
      {R"("structured_outputs":{"choice":[]})", "structured_outputs.choice"},
      {R"("structured_outputs":{"json":7})", "structured_outputs.json"},
      {R"("structured_outputs":{"structural_tag":"x"})", "structured_outputs.structural_tag"},
      {R"("structured_outputs":{"regex":"a"},"response_format":{"type":"json_object"})", "structured_outputs"},
      {R"("structured_outputs":{"regex":"a"})", "structured_outputs.regex"},  // this bench makes no constraints
      {R"("temperature":NaN)", "temperature"},
      {R"("temperature":1e999)", "temperature"},
      {R"("top_p":-Infinity)", "top_p"},
      {R"("max_tokens":Infinity)", "max_tokens"},
      {R"("logit_bias":{"3":NaN})", "logit_bias.3"},
      {R"("stop_token_ids":[1,NaN])", "stop_token_ids[1]"},
      {R"("max_tokens":5000)", "max_tokens"},
      {R"("max_completion_tokens":5000)", "max_completion_tokens"},
      {R"("reasoning_effort":"medium")", "reasoning_effort"},
      {R"("guided_json":{"type":"object"})", "guided_json"},
      {R"("mm_processor_kwargs":{"a":1})", "mm_processor_kwargs"},
      {R"("kv_transfer_params":{"a":1})", "kv_transfer_params"},
      {R"("thinking_token_budget":10)", "thinking_token_budget"},
      {R"("logprob_token_ids":[1])", "logprob_token_ids"},
      {R"("functions":[{}])", "functions"},
      {R"("modalities":["audio"])", "modalities"},
      {R"("audio":{"voice":"x"})", "audio"},
      {R"("skip_special_tokens":false)", "skip_special_tokens"},
      {R"("truncate_prompt_tokens":5)", "truncate_prompt_tokens"},
      {R"("tools":[])", "tools"},
      {R"("tool_choice":"required")", "tool_choice"},
      {R"("tool_choice":"sometimes")", "tool_choice"},
      {std::string("\"tools\":[") + kTool + R"(],"tool_choice":{"type":"function","function":{"name":"other"}})",
       "tool_choice"},
      {R"("tools":[{"type":"function","function":{"name":"1bad"}}])", "tools[0].function.name"},
      {std::string("\"tools\":[") + kTool + "," + kTool + "]", "tools[1].function.name"},
      {R"("tools":[{"function":{"name":"a"}}])", "tools[0].type"},
      {R"("tools":[{"type":"function","function":{"name":"a","strict":"yes"}}])", "tools[0].function.strict"},
      {R"("response_format":{"type":"bogus"})", "response_format.type"},
      {R"("response_format":{"type":"structural_tag"})", "response_format.type"},
      {R"("response_format":{"type":"json_schema"})", "response_format.json_schema"},
      {R"("response_format":{"type":"json_schema","json_schema":{"schema":{}}})", "response_format.json_schema.name"},
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"a","schema":1}})",
       "response_format.json_schema.schema"},
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"a","schema":{},"strict":1}})",
       "response_format.json_schema.strict"},
      {R"("thinking":{"type":"maybe"})", "thinking.type"},
      {R"("thinking":{"keep":"some"})", "thinking.keep"},
      {R"("thinking":{"effort":"huge"})", "thinking.effort"},
      {R"("reasoning_effort":"huge")", "reasoning_effort"},
      {R"("chat_template_kwargs":{"tokenize":true})", "chat_template_kwargs.tokenize"},
      {R"("continue_final_message":true)", "continue_final_message"},
      {R"("parallel_tool_calls":"no")", "parallel_tool_calls"},
  };
  ApiBench bench;
  for (const Refusal& one : refusals) {
    const auto reply = bench.post(kChat, ask(one.more));
    EXPECT_EQ(reply->status(), 400) << one.more;
    const Json error = json_of(reply->body());
    EXPECT_EQ(text_at(error, "error.param"), one.param) << reply->body();
    EXPECT_EQ(text_at(error, "error.type"), "invalid_request_error");
    EXPECT_NE(text_at(error, "error.message").find(one.param.substr(one.param.rfind('.') + 1)), std::string::npos)
        << reply->body();
  }
  EXPECT_EQ(bench.backend.requests(), 0u) << "nothing refused reaches the engine";
}

TEST(Rules, WrongMessagesAreRefused) {
  ApiBench bench;
  for (const char* messages :
       {"[]", "null", "{}", R"([{"role":"user","content":[]}])", R"([{"role":"user"}])",
        R"([{"role":"wizard","content":"x"}])", R"([{"role":"user","content":"x","tools":[]}])",
        R"([{"role":"tool","content":"x"}])",
        R"([{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}])",
        R"([{"role":"user","content":[{"type":"input_audio","input_audio":{}}]}])",
        R"([{"role":"system","content":"x","tools":[{"type":"function","function":{"name":"a"}}]}])",
        R"([{"role":"assistant","partial":true,"content":"x"}])"}) {
    const auto reply = bench.post(kChat, std::string("{\"messages\":") + messages + "}");
    EXPECT_EQ(reply->status(), 400) << messages;
    EXPECT_TRUE(text_at(json_of(reply->body()), "error.param").starts_with("messages")) << reply->body();
  }
}

TEST(Rules, WhatMeansNothingIsAcceptedAndUnknownFieldsAreIgnored) {
  ApiBench bench;
  bench.answer(kAnswer);
  for (const char* more : {R"("tool_choice":"auto")", R"("tool_choice":"none")", R"("foo":{"bar":[1]})",
                           R"("best_of":null)", R"("use_beam_search":false)", R"("response_format":{"type":"text"})",
                           R"("modalities":["text"])", R"("logit_bias":{})", R"("stop":null)", R"("stop":[])",
                           R"("max_tokens":16.0)", R"("top_k":-1)", R"("store":true,"metadata":{"a":"b"})",
                           R"("add_generation_prompt":true)", R"("messages":[{"role":"developer","content":"x"}])",
                           R"("thinking":{"type":"enabled","keep":"all","effort":"low"})",
                           R"("chat_template_kwargs":{"thinking_effort":"high"})", R"("reasoning_effort":"max")"}) {
    EXPECT_EQ(bench.post(kChat, ask(more))->status(), 200) << more;
  }
}

TEST(Rules, BodiesThatAreNoRequestAre400) {
  ApiBench bench;
  std::string deep(200, '[');
  for (const std::string& body :
       {std::string(), std::string("{"), std::string("[]"), std::string("\"x\""),
        std::string("{\"messages\":\"\xFF\"}"), "{\"messages\":" + deep + std::string(200, ']') + "}"}) {
    EXPECT_EQ(bench.post(kChat, body)->status(), 400) << body;
    EXPECT_EQ(bench.post("/v1/completions", body)->status(), 400) << body;
  }
}

TEST(Rules, TooLongIsA400ThatClientsRecognise) {
  ApiBench bench;
  for (const char* more : {R"("max_tokens":5000)", R"("max_completion_tokens":9223372036854775807)"}) {
    const auto reply = bench.post(kChat, ask(more));
    EXPECT_EQ(reply->status(), 400);
    EXPECT_NE(reply->body().find("maximum context length"), std::string::npos);
    EXPECT_EQ(reply->body().find('-'), std::string::npos) << "no number has run over: " << reply->body();
    EXPECT_EQ(text_at(json_of(reply->body()), "error.code"), "context_length_exceeded");
  }
  std::string prompt = "[1";
  for (int i = 0; i < 4096; ++i) prompt += ",1";
  EXPECT_NE(bench.post("/v1/completions", "{\"prompt\":" + prompt + "]}")->body().find("context_length_exceeded"),
            std::string::npos);
}

TEST(Rules, WithoutMaxTokensTheRestOfTheContextIsTheLimit) {
  ApiBench bench;
  bench.answer(kAnswer);
  bench.post(kChat, ask(R"("seed":1)"));
  const engine::TokenRequest request = bench.backend.request(0);
  EXPECT_EQ(request.max_tokens, 4096 - static_cast<int64_t>(request.prompt.size()));
  bench.post(kChat, ask(R"("max_tokens":5,"max_completion_tokens":7)"));
  EXPECT_EQ(bench.backend.request(1).max_tokens, 7);
}

TEST(Rules, SamplingReachesTheEngine) {
  ApiOptions options = default_options();
  options.defaults = {.temperature = 0.7, .top_p = 0.9, .top_k = 40, .min_p = 0.1, .repetition_penalty = 1.1};
  options.end_ids = {5};
  ApiBench bench(std::move(options));
  bench.answer(kAnswer);
  bench.post(kChat, ask(R"("max_tokens":8)"));
  engine::TokenRequest request = bench.backend.request(0);
  EXPECT_EQ(request.sampling.temperature, 0.7);
  EXPECT_EQ(request.sampling.top_p, 0.9);
  EXPECT_EQ(request.sampling.top_k, 40);
  EXPECT_EQ(request.sampling.repetition_penalty, 1.1);
  EXPECT_EQ(request.sampling.seed, 7u) << "the server's seed";
  const int32_t end = *text::testing::demo_tokenizer().special_id("<|end_of_msg|>");
  EXPECT_EQ(request.stop_ids, (std::vector<int32_t>{5, end}));
  const auto reply = bench.post(
      kChat,
      ask(R"("temperature":0,"top_p":0.5,"top_k":3,"min_p":0,"seed":-1,"logit_bias":{"3":-100,"4":2.5},
      "bad_words":["a"],"allowed_token_ids":[1,2],"min_tokens":2,"stop_token_ids":[9],"ignore_eos":true,
      "presence_penalty":1,"frequency_penalty":-1,
      "priority":-3,"user":"u","cache_salt":"s","logprobs":true,"top_logprobs":4,"prompt_logprobs":0)"));
  ASSERT_EQ(reply->status(), 200) << reply->body();
  request = bench.backend.request(1);
  EXPECT_EQ(request.sampling.temperature, 0);
  EXPECT_EQ(request.sampling.top_k, 3);
  EXPECT_EQ(request.sampling.seed, ~0ull);
  EXPECT_EQ(request.sampling.logit_bias, (std::vector<std::pair<int32_t, float>>{{3, -100.f}, {4, 2.5f}}));
  EXPECT_EQ(request.sampling.bad_words.size(), 2u) << "with and without the space before it";
  EXPECT_EQ(request.sampling.allowed_ids, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(request.sampling.min_tokens, 2);
  EXPECT_EQ(request.stop_ids, std::vector<int32_t>{9}) << "ignore_eos leaves the client's own";
  EXPECT_EQ(request.priority, -3);
  EXPECT_EQ(request.session, "u");
  EXPECT_EQ(request.cache_salt, "s");
  EXPECT_EQ(request.top_logprobs, 4);
  EXPECT_EQ(request.prompt_logprobs, 0);
}

TEST(Rules, TenantsShareNeitherPrefixesNorTurns) {
  ApiBench bench;
  bench.answer(kAnswer);
  HttpRequest request;
  request.id = "x";
  for (const char* tenant : {"t1", "t2"}) {
    request.tenant = tenant;
    request.headers["x-session-id"] = "s";
    bench.post(kChat, ask(R"("seed":1)"), request);
  }
  EXPECT_NE(bench.backend.request(0).cache_salt, bench.backend.request(1).cache_salt);
  EXPECT_NE(bench.backend.request(0).session, bench.backend.request(1).session);
  EXPECT_EQ(bench.backend.request(0).label, "x");
}

TEST(Rules, RequestsWithoutSeedDifferWhenTheServerHasNone) {
  ApiOptions options = default_options();
  options.seed.reset();
  ApiBench bench(std::move(options));
  bench.answer(kAnswer);
  bench.post(kChat, ask(R"("n":1)"));
  bench.post(kChat, ask(R"("n":1)"));
  EXPECT_NE(bench.backend.request(0).sampling.seed, bench.backend.request(1).sampling.seed);
}

TEST(Rules, PromptLogprobsAreBoundedInBytes) {
  ApiOptions options = default_options();
  options.limits.prompt_logprob_bytes_max = 10000;
  ApiBench bench(std::move(options));
  bench.answer(kAnswer);
  EXPECT_EQ(bench.post(kChat, ask(R"("prompt_logprobs":0)"))->status(), 200);
  const auto reply = bench.post(kChat, ask(R"("prompt_logprobs":20)"));
  EXPECT_EQ(reply->status(), 400);
  EXPECT_EQ(text_at(json_of(reply->body()), "error.param"), "prompt_logprobs");
}

TEST(Rules, PromptLogprobsComeWithIdsRanksAndTexts) {
  ApiBench bench;
  bench.answer(kAnswer);
  const Json reply = bench.post_json(kChat, ask(R"("prompt_logprobs":2)"));
  const std::vector<int32_t> prompt = bench.backend.request(0).prompt;
  ASSERT_EQ(at(reply, "prompt_logprobs").items().size(), prompt.size());
  EXPECT_TRUE(at(reply, "prompt_logprobs.0").is_null());
  const Json& own = *at(reply, "prompt_logprobs.1").find(std::to_string(prompt[1]));
  EXPECT_EQ(at(own, "logprob").as_double(), -0.5);
  EXPECT_EQ(text_at(own, "rank"), "1");
}

TEST(Rules, ConstraintsAreMadeFromTheRequestAndClonedForEachChoice) {
  struct Free : text::Constraint {
    bool fill_mask(std::span<uint32_t>) override { return false; }
    void accept(int32_t) override {}
    void rollback(int64_t) override {}
    std::unique_ptr<text::Constraint> clone() const override { return std::make_unique<Free>(); }
  };
  std::vector<ConstraintSpec::Kind> kinds;
  ApiOptions options = default_options();
  options.make_constraint = [&](const ConstraintSpec& spec) -> Result<std::shared_ptr<text::Constraint>> {
    kinds.push_back(spec.kind);
    if (spec.kind == ConstraintSpec::Kind::kRegex) return invalid_argument("structured_outputs.regex does not compile");
    return std::shared_ptr<text::Constraint>(std::make_shared<Free>());
  };
  ApiBench bench(std::move(options));
  bench.answer(kAnswer);
  EXPECT_EQ(bench.post(kChat, ask(R"("response_format":{"type":"json_object"},"n":2)"))->status(), 200);
  EXPECT_NE(bench.backend.request(0).constraint, nullptr);
  EXPECT_NE(bench.backend.request(0).constraint, bench.backend.request(1).constraint);
  EXPECT_EQ(bench.post(kChat, ask(std::string("\"tools\":[") + kTool + R"(],"tool_choice":"required")"))->status(),
            200);
  EXPECT_EQ(bench.post(kChat, ask(std::string("\"tools\":[") + kTool + "]"))->status(), 200);
  EXPECT_EQ(kinds.size(), 2u) << "tools that are not strict leave the answer free";
  for (const char* more :
       {R"("structured_outputs":{"json":{"type":"object"}})", R"("structured_outputs":{"choice":["a","b"]})",
        R"("structured_outputs":{"grammar":"root ::= \"a\""})", R"("response_format":{"type":"json_object"})"}) {
    EXPECT_EQ(bench.post("/v1/completions", std::string("{\"prompt\":\"a\",") + more + "}")->status(), 200) << more;
  }
  const auto refused = bench.post("/v1/completions", R"({"prompt":"a","structured_outputs":{"regex":"("}})");
  EXPECT_EQ(refused->status(), 400);
  EXPECT_EQ(text_at(json_of(refused->body()), "error.param"), "structured_outputs.regex");
}

TEST(Rules, StructuredOutputsOfAChatHoldForItsResponse) {
  struct Seen {
    ConstraintSpec::Kind kind;
    bool chat;
    std::string text;
  };
  std::vector<Seen> seen;
  ApiOptions options = default_options();
  options.make_constraint = [&](const ConstraintSpec& spec) -> Result<std::shared_ptr<text::Constraint>> {
    std::string text = spec.source;
    for (const std::string& choice : spec.choices) text += choice;
    seen.push_back({spec.kind, spec.chat != nullptr, text});
    if (spec.source == "(") return invalid_argument("{} does not compile", spec.field);
    return std::shared_ptr<text::Constraint>();
  };
  ApiBench bench(std::move(options));
  bench.answer(kAnswer);
  using Kind = ConstraintSpec::Kind;
  const std::pair<std::string, Kind> wishes[] = {
      {R"({"json":{"type":"object"}})", Kind::kJsonSchema}, {R"({"json":"{}"})", Kind::kJsonSchema},
      {R"({"json_object":true})", Kind::kJsonObject},       {R"({"regex":"a+"})", Kind::kRegex},
      {R"({"choice":["a","b"]})", Kind::kChoice},           {R"({"grammar":"root ::= \"a\""})", Kind::kGrammar}};
  for (const auto& [outputs, kind] : wishes) {
    for (const std::string& beside : {std::string(), std::string(R"(,"response_format":{"type":"text"})"),
                                      std::string(",\"tools\":[") + kTool + R"(],"tool_choice":"required")"}) {
      seen.clear();
      const auto reply = bench.post(kChat, ask("\"structured_outputs\":" + outputs + beside));
      EXPECT_EQ(reply->status(), 200) << reply->body();
      ASSERT_EQ(seen.size(), 1u);
      EXPECT_EQ(seen[0].kind, kind);
      EXPECT_TRUE(seen[0].chat) << "its tools and channels count as well";
    }
  }
  const auto refused = bench.post(kChat, ask(R"("structured_outputs":{"regex":"("})"));
  EXPECT_EQ(refused->status(), 400);
  EXPECT_EQ(text_at(json_of(refused->body()), "error.param"), "structured_outputs.regex");
}

TEST(Rules, WithoutConstrainedDecodingSuchRequestsAreRefused) {
  ApiBench bench;
  for (const std::string& more :
       {std::string(R"("response_format":{"type":"json_object"})"),
        std::string("\"tools\":[") + kTool + R"(],"tool_choice":"required")",
        std::string(R"("tools":[{"type":"function","function":{"name":"a","strict":true}}])")}) {
    const auto reply = bench.post(kChat, ask(more));
    EXPECT_EQ(reply->status(), 400) << more;
    EXPECT_NE(reply->body().find("constrained decoding"), std::string::npos);
  }
}

TEST(Rules, MinusInfinityIsWrittenAsAFloor) {
  std::string out;
  append_logprob(-INFINITY, out);
  out += ' ';
  append_logprob(std::nan(""), out);
  out += ' ';
  append_logprob(-0.125, out);
  EXPECT_EQ(out, "-9999 -9999 -0.125");
}

TEST(Rules, FixedSamplingTakesKimisOwnValuesOnly) {
  ApiOptions options = default_options();
  options.fixed_sampling = true;
  ApiBench bench(std::move(options));
  bench.answer(kAnswer);
  EXPECT_EQ(bench.post(kChat, ask(R"("temperature":1.0,"top_p":0.95,"n":1)"))->status(), 200);
  EXPECT_EQ(bench.post(kChat, ask(R"("temperature":0.6,"thinking":{"type":"disabled"})"))->status(), 200);
  for (const char* more :
       {R"("temperature":1.1)", R"("temperature":0.6)", R"("top_p":0.8)", R"("n":2)", R"("presence_penalty":0.5)"}) {
    EXPECT_EQ(bench.post(kChat, ask(more))->status(), 400) << more;
  }
}

TEST(Rules, AFinishedRequestIsRecorded) {
  std::vector<RequestRecord> records;
  ApiOptions options = default_options();
  options.on_finished = [&](const RequestRecord& record) { records.push_back(record); };
  ApiBench bench(std::move(options));
  bench.answer(kAnswer);
  bench.post(kChat, ask(R"("n":2)"));
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].reason, "stop");
  EXPECT_EQ(records[0].choices, 2);
  EXPECT_EQ(records[0].prompt_tokens, static_cast<int64_t>(bench.backend.request(0).prompt.size()));
  EXPECT_EQ(records[0].generated_tokens, 2 * static_cast<int64_t>(ApiBench::ids(kAnswer).size()));
  EXPECT_GE(records[0].first_token_s, 0);
}

TEST(Rules, TimesAreTheEnginesAndGapsCountTheirTokens) {
  std::vector<RequestRecord> records;
  std::vector<std::pair<double, int64_t>> gaps;
  ApiOptions options = default_options();
  options.on_finished = [&](const RequestRecord& record) { records.push_back(record); };
  options.on_token_gap = [&](double seconds, int64_t tokens) { gaps.emplace_back(seconds, tokens); };
  ApiBench bench(std::move(options));
  const std::vector<int32_t> ids = ApiBench::ids("one two three four five six seven eight");
  ASSERT_GE(ids.size(), 6u);
  bench.answer("one two three four five six seven eight", engine::RequestEnd::kLength, {2, 3, 1});
  bench.post("/v1/completions", R"({"prompt":"a"})");
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].queue_s, 0.5);
  EXPECT_EQ(records[0].prefill_s, 1.5);
  EXPECT_EQ(records[0].decode_s, 0.25 * static_cast<double>(gaps.size()));
  ASSERT_GE(gaps.size(), 2u);
  EXPECT_EQ(gaps[0], (std::pair<double, int64_t>(0.25, 3))) << "the first update has no gap before it";
  EXPECT_EQ(gaps[1], (std::pair<double, int64_t>(0.25, 1)));
  size_t counted = 2;
  for (const auto& [seconds, tokens] : gaps) counted += static_cast<size_t>(tokens);
  EXPECT_EQ(counted, ids.size());
}

TEST(Rules, IgnoringTheEndGoesOnPastIt) {
  ApiBench bench;
  bench.answer("one<|end_of_msg|>two", engine::RequestEnd::kLength);
  const Json reply = bench.post_json("/v1/completions", R"({"prompt":"a","ignore_eos":true})");
  EXPECT_EQ(text_at(reply, "choices.0.text"), "onetwo");
  EXPECT_EQ(text_at(reply, "choices.0.finish_reason"), "length");
}

TEST(Rules, AStopTokenIsNamedAndEndsTheText) {
  ApiBench bench;
  const std::vector<int32_t> ids = ApiBench::ids("one two");
  bench.answer("one two");
  const Json reply =
      bench.post_json("/v1/completions", fmt::format(R"({{"prompt":"a","stop_token_ids":[{}]}})", ids.back()));
  EXPECT_EQ(text_at(reply, "choices.0.stop_reason"), std::to_string(ids.back()));
  EXPECT_EQ(text_at(reply, "choices.0.finish_reason"), "stop");
  EXPECT_EQ(at(reply, "usage.completion_tokens").as_double(), static_cast<double>(ids.size()));
}

}  // namespace
}  // namespace perigee::serve
