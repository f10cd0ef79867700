// Refusals of all routes but the chat's own (api_rules_test.cc): each names the field as clients of that route write it.
#include <gtest/gtest.h>

#include "serve/testing.h"

namespace perigee::serve {
namespace {

using namespace testing;

constexpr const char* kChat = "/v1/chat/completions";

struct Anywhere {
  const char* path;
  std::string body;
  std::string param;
};

// The other routes: fields that only they have, and each one's own name for what is shared.
TEST(Rules, EveryRouteNamesTheFieldAsItsClientsWriteIt) {
  const std::string user = R"("messages":[{"role":"user","content":"Hi"}])";
  const std::string words = [] {
    std::string out = "hello";
    for (int i = 0; i < 5000; ++i) out += " hello";
    return out;
  }();
  std::string many_ids = "[1";
  for (int i = 0; i < 4096; ++i) many_ids += ",1";
  many_ids += "]";
  const std::string tool = R"({"type":"function","name":"1bad","parameters":{}})";
  const std::vector<Anywhere> refusals = {
      {kChat, R"({"messages":[{"role":"user","content":")" + words + R"("}]})", "messages"},
      {kChat, R"({"messages":NaN})", "messages"},
      {kChat, R"({"messages":[{"role":"user","content":NaN}]})", "messages[0].content"},
      {"/v1/completions", R"({})", "prompt"},
      {"/v1/completions", R"({"prompt":7})", "prompt"},
      {"/v1/completions", R"({"prompt":[]})", "prompt"},
      {"/v1/completions", R"({"prompt":[99999999]})", "prompt"},
      {"/v1/completions", R"({"prompt":["a",7]})", "prompt"},
      {"/v1/completions", R"({"prompt":""})", "prompt"},
      {"/v1/completions", R"({"prompt":)" + many_ids + "}", "prompt"},
      {"/v1/completions", R"({"prompt":"a","max_tokens":5000})", "max_tokens"},
      {"/v1/completions", R"({"prompt":"a","max_tokens":0})", "max_tokens"},
      {"/v1/completions", R"({"prompt":"a","temperature":NaN})", "temperature"},
      {"/v1/completions", R"({"prompt":"a","echo":1})", "echo"},
      {"/v1/completions", R"({"prompt":"a","suffix":"b"})", "suffix"},
      {"/v1/completions", R"({"prompt":"a","logprobs":-2})", "logprobs"},
      {"/v1/completions", R"({"prompt":"a","truncate_prompt_tokens":0})", "truncate_prompt_tokens"},
      {"/v1/completions", R"({"prompt":"a","truncation_side":"top"})", "truncation_side"},
      {"/v1/completions", R"({"prompt":"a","response_format":7})", "response_format"},
      {"/v1/completions", R"({"prompt":"a","response_format":{"type":"x"}})", "response_format.type"},
      {"/v1/completions", R"({"prompt":"a","response_format":{"type":"json_schema"}})", "response_format.json_schema.schema"},
      {"/v1/completions", R"({"prompt":"a","structured_outputs":{"regex":"a"},"response_format":{"type":"json_object"}})",
       "structured_outputs"},
      {"/v1/completions", R"({"prompt":["a","b"],"n":64,"seed":1.5})", "seed"},
      {"/inference/v1/generate", R"({})", "token_ids"},
      {"/inference/v1/generate", R"({"token_ids":[]})", "token_ids"},
      {"/inference/v1/generate", R"({"prompt_token_ids":[-1]})", "prompt_token_ids"},
      {"/inference/v1/generate", R"({"token_ids":)" + many_ids + "}", "token_ids"},
      {"/inference/v1/generate", R"({"token_ids":[1],"sampling_params":7})", "sampling_params"},
      {"/inference/v1/generate", R"({"token_ids":[1],"sampling_params":{"temperature":3}})", "sampling_params.temperature"},
      {"/inference/v1/generate", R"({"token_ids":[1],"sampling_params":{"top_p":NaN}})", "sampling_params.top_p"},
      {"/inference/v1/generate", R"({"token_ids":[1],"sampling_params":{"max_tokens":5000}})", "sampling_params.max_tokens"},
      {"/inference/v1/generate", R"({"token_ids":[1],"features":[1]})", "features"},
      {"/v1/responses", R"({})", "input"},
      {"/v1/responses", R"({"input":[]})", "input"},
      {"/v1/responses", R"({"input":")" + words + R"("})", "input"},
      {"/v1/responses", R"({"input":"a","max_output_tokens":5000})", "max_output_tokens"},
      {"/v1/responses", R"({"input":"a","max_output_tokens":1e999})", "max_output_tokens"},
      {"/v1/responses", R"({"input":"a","truncation":"auto"})", "truncation"},
      {"/v1/responses", R"({"input":"a","background":true})", "background"},
      {"/v1/responses", R"({"input":[{"role":"user","content":7}]})", "input[0].content"},
      {"/v1/responses", R"({"input":[{"type":"function_call_output","call_id":"x","output":"y"}]})", "input"},
      {"/v1/responses", R"({"input":"a","tools":[)" + tool + "]}", "tools[0].name"},
      {"/v1/responses", R"({"input":"a","tools":[{"type":"web_search"}]})", "tools[0].type"},
      {"/v1/responses", R"({"input":"a","tool_choice":"sometimes"})", "tool_choice"},
      {"/v1/responses", R"({"input":"a","text":{"format":{"type":"yaml"}}})", "text.format"},
      {"/v1/responses", R"({"input":"a","reasoning":{"effort":"medium"}})", "reasoning.effort"},
      {"/v1/responses", R"({"input":"a","reasoning_effort":"medium"})", "reasoning_effort"},
      {"/tokenize", R"({})", "prompt"},
      {"/tokenize", R"({"prompt":"a",)" + user + "}", "prompt"},
      {"/tokenize", R"({"prompt":NaN})", "prompt"},
      {"/tokenize", R"({"messages":[]})", "messages"},
      {"/detokenize", R"({})", "tokens"},
      {"/detokenize", R"({"tokens":[99999999]})", "tokens"},
      {"/detokenize", R"({"tokens":[1e999]})", "tokens[0]"},
  };
  ApiBench bench;
  for (const Anywhere& one : refusals) {
    const auto reply = bench.post(one.path, one.body);
    EXPECT_EQ(reply->status(), 400) << one.path << ' ' << one.body.substr(0, 100);
    EXPECT_EQ(text_at(json_of(reply->body()), "error.param"), one.param) << one.body.substr(0, 100) << reply->body();
  }
  // Anthropic's errors have no such member; the sentence begins with the name.
  const std::vector<std::pair<std::string, std::string>> messages = {
      {R"({"max_tokens":1})", "messages"},
      {"{" + user + "}", "max_tokens"},
      {"{" + user + R"(,"max_tokens":5000})", "max_tokens"},
      {"{" + user + R"(,"max_tokens":NaN})", "max_tokens"},
      {R"({"max_tokens":1,"messages":[{"role":"user","content":")" + words + R"("}]})", "messages"},
      {"{" + user + R"(,"max_tokens":1,"tools":[{"name":"1bad","input_schema":{}}]})", "tools[0].name"},
      {"{" + user + R"(,"max_tokens":1,"tools":[{"name":"a"}]})", "tools[0].input_schema"},
      {"{" + user + R"(,"max_tokens":1,"output_config":{"effort":"medium"}})", "output_config.effort"},
      {"{" + user + R"(,"max_tokens":1,"stop_sequences":[""]})", "stop_sequences"},
      {R"({"max_tokens":1,"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"x"}]}]})", "messages"},
  };
  for (const auto& [body, field] : messages) {
    const auto reply = bench.post("/v1/messages", body);
    EXPECT_EQ(reply->status(), 400) << body.substr(0, 100);
    EXPECT_TRUE(text_at(json_of(reply->body()), "error.message").starts_with(field + " ")) << reply->body();
  }
  EXPECT_EQ(bench.backend.requests(), 0u);
}

}  // namespace
}  // namespace perigee::serve
