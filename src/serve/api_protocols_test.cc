#include <gtest/gtest.h>

#include "serve/testing.h"

namespace perigee::serve {
namespace {

using engine::RequestEnd;
using namespace testing;

constexpr const char* kPlain =
    "Let me think.<|close|>think<|sep|><|open|>response<|sep|>Hello, "
    "world!<|close|>response<|sep|><|close|>message<|sep|>"
    "<|end_of_msg|>";
constexpr const char* kCall =
    "Hm.<|close|>think<|sep|><|open|>response<|sep|>Looking.<|close|>response<|sep|><|open|>tools<|sep|>"
    "<|open|>call tool=\"find\" index=\"1\"<|sep|><|open|>argument key=\"q\" type=\"string\"<|sep|>a "
    "\"b\"<|close|>argument<|sep|>"
    "<|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>";

std::vector<std::string> event_names(const std::string& body) {
  std::vector<std::string> out;
  for (size_t at = body.find("event: "); at != std::string::npos; at = body.find("event: ", at + 1)) {
    std::string name = body.substr(at + 7, body.find('\n', at) - at - 7);
    if (out.empty() || out.back() != name) out.push_back(std::move(name));
  }
  return out;
}

std::string messages_request(const std::string& more = "") {
  return R"({"model":"demo","max_tokens":50,"messages":[{"role":"user","content":"Hi"}])" +
         (more.empty() ? "" : "," + more) + "}";
}
constexpr const char* kMessagesTools = R"("tools":[{"name":"find","input_schema":{"type":"object"}}])";
constexpr const char* kResponsesTools = R"("tools":[{"type":"function","name":"find","parameters":{"type":"object"}}])";

TEST(Messages, AWholeAnswerIsAListOfBlocks) {
  ApiBench bench;
  bench.answer(kCall);
  const Json reply = bench.post_json("/v1/messages", messages_request(kMessagesTools));
  EXPECT_EQ(text_at(reply, "type"), "message");
  EXPECT_EQ(text_at(reply, "content.0.type"), "thinking");
  EXPECT_EQ(text_at(reply, "content.0.thinking"), "Hm.");
  EXPECT_EQ(text_at(reply, "content.0.signature"), "");
  EXPECT_EQ(text_at(reply, "content.1.text"), "Looking.");
  EXPECT_EQ(text_at(reply, "content.2.name"), "find");
  EXPECT_EQ(text_at(reply, "content.2.input.q"), "a \"b\"");
  EXPECT_EQ(text_at(reply, "stop_reason"), "tool_use");
  EXPECT_EQ(at(reply, "usage.input_tokens").as_double(), static_cast<double>(bench.backend.request(0).prompt.size()));
}

TEST(Messages, AStreamOpensAndClosesEachBlockInOrder) {
  ApiBench bench;
  bench.answer(kCall);
  const auto reply = bench.post("/v1/messages", messages_request(std::string(kMessagesTools) + R"(,"stream":true)"));
  const std::vector<std::string> block = {"content_block_start", "content_block_delta", "content_block_stop"};
  std::vector<std::string> expected = {"message_start"};
  for (int i = 0; i < 3; ++i) expected.insert(expected.end(), block.begin(), block.end());
  expected.insert(expected.end(), {"message_delta", "message_stop"});
  EXPECT_EQ(event_names(reply->body()), expected);
  std::string thinking, text, json;
  for (const Json& event : events_of(reply->body())) {
    EXPECT_NE(reply->body().find("event: " + text_at(event, "type") + "\n"), std::string::npos);
    if (text_at(event, "delta.type") == "thinking_delta") thinking += text_at(event, "delta.thinking");
    if (text_at(event, "delta.type") == "text_delta") text += text_at(event, "delta.text");
    if (text_at(event, "delta.type") == "input_json_delta") json += text_at(event, "delta.partial_json");
    if (text_at(event, "type") == "message_delta") {
      EXPECT_EQ(text_at(event, "delta.stop_reason"), "tool_use");
      EXPECT_EQ(at(event, "usage.output_tokens").as_double(), static_cast<double>(ApiBench::ids(kCall).size()));
    }
  }
  EXPECT_EQ(thinking, "Hm.");
  EXPECT_EQ(text, "Looking.");
  EXPECT_EQ(text_at(json_of(json), "q"), "a \"b\"");
}

TEST(Messages, StopSequencesAndLengthsHaveTheirReasons) {
  ApiBench bench;
  bench.answer(kPlain);
  const Json stopped = bench.post_json("/v1/messages", messages_request(R"("stop_sequences":["lo, w"])"));
  EXPECT_EQ(text_at(stopped, "stop_reason"), "stop_sequence");
  EXPECT_EQ(text_at(stopped, "stop_sequence"), "lo, w");
  EXPECT_EQ(text_at(stopped, "content.1.text"), "Hel");
  bench.answer("Still", RequestEnd::kLength);
  EXPECT_EQ(text_at(bench.post_json("/v1/messages", messages_request()), "stop_reason"), "max_tokens");
}

TEST(Messages, TheHistoryIsThatOfAnEqualChatRequest) {
  ApiBench bench;
  bench.answer(kPlain);
  bench.post(
      "/v1/messages",
      R"({"max_tokens":5,"system":[{"type":"text","text":"Be brief."}],)" + std::string(kMessagesTools) +
          R"(,"messages":[{"role":"user","content":"Hi"},{"role":"assistant",
      "content":[{"type":"thinking","thinking":"T","signature":""},
      {"type":"text","text":"Wait."},{"type":"tool_use","id":"c1","name":"find","input":{"q":1}}]},
      {"role":"user","content":[{"type":"tool_result","tool_use_id":"c1","content":"found"},
      {"type":"text","text":"Go on"}]}]})");
  bench.post("/v1/chat/completions",
             R"({"tools":[{"type":"function","function":{"name":"find","parameters":{"type":"object"}}}],
      "messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Hi"},
      {"role":"assistant","reasoning":"T",
      "content":"Wait.","tool_calls":[{"id":"c1","function":{"name":"find","arguments":"{\"q\":1}"}}]},
      {"role":"tool","tool_call_id":"c1","content":"found"},{"role":"user","content":"Go on"}]})");
  ASSERT_EQ(bench.backend.requests(), 2u);
  EXPECT_EQ(bench.backend.request(0).prompt, bench.backend.request(1).prompt);
  EXPECT_EQ(bench.backend.request(0).max_tokens, 5);
}

TEST(Messages, CountTokensIsThePromptOfTheSameRequest) {
  ApiBench bench;
  bench.answer(kPlain);
  bench.post("/v1/messages", messages_request());
  const Json count = bench.post_json("/v1/messages/count_tokens", R"({"messages":[{"role":"user","content":"Hi"}]})");
  EXPECT_EQ(at(count, "input_tokens").as_double(), static_cast<double>(bench.backend.request(0).prompt.size()));
}

TEST(Messages, WrongRequestsAreErrorsOfThisProtocol) {
  ApiBench bench;
  for (const char* body :
       {R"({"messages":[{"role":"user","content":"Hi"}]})", R"({"max_tokens":1})", R"({"max_tokens":1,"messages":[]})",
        R"({"max_tokens":1,"messages":[{"role":"tool","content":"x"}]})",
        R"({"max_tokens":1,"messages":[{"role":"user","content":[]}]})",
        R"({"max_tokens":1,"messages":[{"role":"user","content":[{"type":"image","source":{}}]}]})",
        R"({"max_tokens":1,"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]})",
        R"({"max_tokens":1,"messages":[{"role":"user","content":"a"}],"thinking":{"type":"maybe"}})",
        R"({"max_tokens":1,"messages":[{"role":"user","content":"a"}],"tools":[{"type":"computer_1","name":"x"}]})",
        R"({"max_tokens":1,"messages":[{"role":"user","content":"a"}],"tool_choice":{"type":"some"}})",
        R"({"max_tokens":5000,"messages":[{"role":"user","content":"a"}]})", "[]", "{"}) {
    const auto reply = bench.post("/v1/messages", body);
    EXPECT_EQ(reply->status(), 400) << body;
    EXPECT_EQ(text_at(json_of(reply->body()), "type"), "error");
    EXPECT_EQ(text_at(json_of(reply->body()), "error.type"), "invalid_request_error");
  }
  EXPECT_EQ(bench.backend.requests(), 0u);
}

TEST(Messages, AFailureInsideAStreamIsAnErrorEvent) {
  ApiBench bench;
  bench.answer_by_hand(kPlain);
  const auto reply = bench.send("POST", "/v1/messages", messages_request(R"("stream":true)"));
  bench.backend.play(0, 4);
  bench.backend.fail(0, "the device is gone");
  bench.api.settle();
  ASSERT_TRUE(reply->over());
  EXPECT_EQ(event_names(reply->body()).back(), "error");
}

TEST(Responses, AWholeAnswerIsAListOfItems) {
  ApiBench bench;
  bench.answer(kCall);
  const Json reply =
      bench.post_json("/v1/responses", R"({"input":"Hi","metadata":{"a":"b"},)" + std::string(kResponsesTools) + "}");
  EXPECT_EQ(text_at(reply, "object"), "response");
  EXPECT_EQ(text_at(reply, "status"), "completed");
  EXPECT_EQ(text_at(reply, "output.0.content.0.text"), "Hm.");
  EXPECT_EQ(text_at(reply, "output.1.content.0.text"), "Looking.");
  EXPECT_EQ(text_at(reply, "output.2.type"), "function_call");
  EXPECT_EQ(text_at(reply, "output.2.arguments"), "{\"q\":\"a \\\"b\\\"\"}");
  EXPECT_EQ(text_at(reply, "metadata.a"), "b");
  EXPECT_GT(at(reply, "usage.output_tokens_details.reasoning_tokens").as_double(), 0);
}

TEST(Responses, AStreamNumbersItsEventsAndHoldsTheWholeAnswerAtItsEnd) {
  ApiBench bench;
  bench.answer(kCall);
  const std::string tools = std::string(kResponsesTools);
  const auto reply = bench.post("/v1/responses", R"({"input":"Hi","stream":true,)" + tools + "}");
  int64_t next = 0;
  std::string arguments;
  const std::vector<Json> events = events_of(reply->body());
  for (const Json& event : events) {
    EXPECT_EQ(at(event, "sequence_number").as_int64().value(), next++);
    if (text_at(event, "type") == "response.function_call_arguments.delta") arguments += text_at(event, "delta");
  }
  const std::vector<std::string> expected = {"response.created",
                                             "response.in_progress",
                                             "response.output_item.added",
                                             "response.content_part.added",
                                             "response.reasoning_text.delta",
                                             "response.reasoning_text.done",
                                             "response.content_part.done",
                                             "response.output_item.done",
                                             "response.output_item.added",
                                             "response.content_part.added",
                                             "response.output_text.delta",
                                             "response.output_text.done",
                                             "response.content_part.done",
                                             "response.output_item.done",
                                             "response.output_item.added",
                                             "response.function_call_arguments.delta",
                                             "response.function_call_arguments.done",
                                             "response.output_item.done",
                                             "response.completed"};
  EXPECT_EQ(event_names(reply->body()), expected);
  const Json whole = bench.post_json("/v1/responses", R"({"input":"Hi",)" + tools + "}");
  EXPECT_EQ(at(events.back(), "response.output"), at(whole, "output"));
  EXPECT_EQ(arguments, text_at(whole, "output.2.arguments"));
}

TEST(Responses, TheHistoryIsThatOfAnEqualChatRequest) {
  ApiBench bench;
  bench.answer(kPlain);
  bench.post("/v1/responses", R"({"instructions":"Be brief.",)" + std::string(kResponsesTools) + R"(,"input":[
      {"role":"user","content":[{"type":"input_text","text":"Hi"}]},
      {"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"T"}]},
      {"type":"message","role":"assistant","content":[{"type":"output_text","text":"Wait."}]},
      {"type":"function_call","call_id":"c1","name":"find","arguments":"{\"q\":1}"},
      {"type":"function_call_output","call_id":"c1","output":"found"}]})");
  bench.post("/v1/chat/completions",
             R"({"tools":[{"type":"function","function":{"name":"find","parameters":{"type":"object"}}}],
      "messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Hi"},
      {"role":"assistant","reasoning":"T",
      "content":"Wait.","tool_calls":[{"id":"c1","function":{"name":"find","arguments":"{\"q\":1}"}}]},
      {"role":"tool","tool_call_id":"c1","content":"found"}]})");
  ASSERT_EQ(bench.backend.requests(), 2u);
  EXPECT_EQ(bench.backend.request(0).prompt, bench.backend.request(1).prompt);
}

TEST(Responses, AStoredResponseIs404AndWrongRequestsAre400) {
  ApiBench bench;
  EXPECT_EQ(bench.post("/v1/responses", R"({"input":"a","previous_response_id":"resp_1"})")->status(), 404);
  for (const char* body :
       {R"({})", R"({"input":""})", R"({"input":[]})", R"({"input":[{"type":"item_reference","id":"x"}]})",
        R"({"input":[{"role":"user","content":[{"type":"input_image","image_url":"x"}]}]})",
        R"({"input":"a","background":true})", R"({"input":"a","truncation":"auto"})",
        R"({"input":"a","tools":[{"type":"web_search"}]})", R"({"input":"a","max_output_tokens":0})",
        R"({"input":"a","text":{"format":{"type":"odd"}}})",
        R"({"input":"a","text":{"format":{"type":"json_object"}}})", R"({"input":"a","conversation":"c"})"}) {
    EXPECT_EQ(bench.post("/v1/responses", body)->status(), 400) << body;
  }
  EXPECT_EQ(bench.backend.requests(), 0u);
}

TEST(Responses, TooFewTokensMakeItIncompleteAndACutCallIsNoOutput) {
  ApiBench bench;
  bench.answer(
      "<|close|>think<|sep|><|open|>tools<|sep|><|open|>call tool=\"find\" index=\"1\"<|sep|>"
      "<|open|>argument key=\"q\" type=\"string\"<|sep|>abc",
      RequestEnd::kLength);
  const std::string body = R"({"input":"Hi","stream":true,)" + std::string(kResponsesTools) + "}";
  const std::vector<Json> events = events_of(bench.post("/v1/responses", body)->body());
  EXPECT_EQ(text_at(events.back(), "type"), "response.incomplete");
  EXPECT_EQ(text_at(events.back(), "response.incomplete_details.reason"), "max_output_tokens");
  EXPECT_EQ(text_at(events.back(), "response.output"), "[]");
}

TEST(Responses, AFailureInsideAStreamEndsItAsFailed) {
  ApiBench bench;
  bench.answer_by_hand(kPlain);
  const auto reply = bench.send("POST", "/v1/responses", R"({"input":"Hi","stream":true})");
  bench.backend.play(0, 4);
  bench.backend.fail(0, "the device is gone");
  bench.api.settle();
  ASSERT_TRUE(reply->over());
  EXPECT_EQ(text_at(events_of(reply->body()).back(), "response.error.message"), "the device is gone");
}

}  // namespace
}  // namespace perigee::serve
