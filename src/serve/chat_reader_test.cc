// Streams of chat-completion chunks as several servers write them, and streams that are none.
#include "serve/chat_reader.h"

#include <gtest/gtest.h>

#include "serve/chat_client.h"

namespace perigee::serve {
namespace {

using Kind = text::OutputEvent::Kind;

// Reasoning in <>, content as it is, calls in [].
std::string shown(const std::vector<text::OutputEvent>& events) {
  std::string text;
  for (const auto& event : events) {
    switch (event.kind) {
      case Kind::kReasoning: text += '<' + event.text + '>'; break;
      case Kind::kCallBegin: text += '[' + event.text + ' '; break;
      case Kind::kCallEnd: text += ']'; break;
      default: text += event.text;
    }
  }
  return text;
}

std::string delta(const std::string& members, const std::string& reason = "null") {
  return R"(data: {"choices":[{"index":0,"delta":{)" + members + R"(},"finish_reason":)" + reason + "}]}\n\n";
}
const std::string kDone = "data: [DONE]\n\n";

struct Read {
  std::string shown;
  std::string error;  // empty: none
  ChatAnswer answer;
};

Read read(std::string_view stream, size_t step = 1 << 20) {
  ChatReader reader;
  std::vector<text::OutputEvent> events;
  Status status;
  while (!stream.empty() && status.ok()) {
    status = reader.feed(stream.substr(0, step), events);
    stream.remove_prefix(std::min(step, stream.size()));
  }
  if (status.ok()) status = reader.finish();
  return {shown(events), status.ok() ? "" : status.error().message, reader.answer()};
}

TEST(ChatReader, KeepsReasoningApart) {
  const std::string stream =
      delta(R"("role":"assistant","content":"")") + delta(R"("reasoning":"a","reasoning_content":"a","content":null)") +
      delta(R"("reasoning":"b","reasoning_content":"b")") + ": keep-alive\n\n" + delta(R"("content":"c\n€")") +
      delta(R"("content":"d")", R"("stop")") +
      "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":4,"
      "\"completion_tokens_details\":{\"reasoning_tokens\":2}}}\n\n" + kDone;
  for (size_t step = 1; step < 40; ++step) {
    const Read got = read(stream, step);
    EXPECT_EQ(got.error, "");
    EXPECT_EQ(got.shown, "<a><b>c\n€d");
    EXPECT_EQ(got.answer.content, "c\n€d");
    EXPECT_EQ(got.answer.reasoning, "ab");
    EXPECT_EQ(got.answer.reasoning_field, "reasoning_content");
    EXPECT_EQ(got.answer.finish_reason, "stop");
    EXPECT_EQ(got.answer.usage, (AnswerUsage{5, 4, 2}));
  }
  EXPECT_EQ(read(delta(R"("reasoning":"x")") + kDone).answer.reasoning_field, "reasoning");
  EXPECT_EQ(read(delta(R"("content":"x")") + kDone).answer.reasoning_field, "");
}

TEST(ChatReader, ShowsToolCalls) {
  const std::string stream =
      delta(R"("content":"Well.")") +
      delta(R"("tool_calls":[{"index":0,"id":"a","type":"function","function":{"name":"f","arguments":""}}])") +
      delta(R"("tool_calls":[{"index":0,"function":{"arguments":"{\"x\""}}])") +
      delta(R"("tool_calls":[{"index":0,"function":{"arguments":":1}"}},{"index":1,"function":{"name":"g","arguments":"{}"}}])",
            R"("tool_calls")") +
      kDone;
  const Read got = read(stream);
  EXPECT_EQ(got.error, "");
  EXPECT_EQ(got.shown, "Well.[f {\"x\":1}][g {}]");
  EXPECT_EQ(got.answer.finish_reason, "tool_calls");
}

TEST(ChatReader, NothingCountsAfterTheEnd) {
  const Read got = read(delta(R"("content":"a")") + kDone + delta(R"("content":"b")") + "data: nonsense\n\n");
  EXPECT_EQ(got.error, "");
  EXPECT_EQ(got.shown, "a");
}

TEST(ChatReader, AStreamWithoutItsEndIsBroken) {
  for (const std::string end : {"", "data: [DONE]", "data: [DONE]\n", "data: {\"choi"}) {
    const Read got = read(delta(R"("content":"half")", R"("stop")") + end);
    EXPECT_EQ(got.shown, "half");
    EXPECT_NE(got.error.find("broke off"), std::string::npos) << got.error;
  }
}

TEST(ChatReader, ErrorsInsideTheStream) {
  const std::string half = delta(R"("content":"half")");
  for (const std::string event : {R"(data: {"error":{"message":"no\nroom","code":503}})", "data: {\"error\":\"no room\"}",
                                  "event: error\ndata: {\"message\":\"no room\"}", "event: error\ndata: \"no room\""}) {
    const Read got = read(half + event + "\n\n" + kDone);
    EXPECT_EQ(got.shown, "half");
    EXPECT_NE(got.error.find("no room"), std::string::npos) << got.error;
  }
  EXPECT_NE(read("data: {\"error\":{}}\n\n").error.find("does not say why"), std::string::npos);
}

TEST(ChatReader, WhatIsNoChunkIsRefused) {
  for (const std::string data : {"{", "[1]", "7", "{\"choices\":1}"}) EXPECT_NE(read("data: " + data + "\n\n" + kDone).error, "");
  EXPECT_NE(read(delta(R"("content":1)") + kDone).error.find("`content` is a number"), std::string::npos);
  EXPECT_NE(read(delta(R"("tool_calls":{})") + kDone).error.find("`tool_calls`"), std::string::npos);
  EXPECT_EQ(read("data: {}\n\ndata: {\"choices\":[null]}\n\ndata: {\"choices\":[{\"delta\":5}]}\n\n" + kDone).error, "");
}

TEST(ChatReader, AWholeAnswer) {
  ChatReader reader;
  std::vector<text::OutputEvent> events;
  const Status read = reader.read_whole(
      R"({"choices":[{"message":{"reasoning":"r","content":"c","tool_calls":[
          {"id":"a","function":{"name":"f","arguments":"{}"}},{"id":"b","function":{"name":"f","arguments":"[]"}}]},
          "finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":2}})", events);
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(shown(events), "<r>c[f {}][f []]");
  EXPECT_EQ(reader.answer().usage, (AnswerUsage{1, 2, 0}));
  EXPECT_FALSE(ChatReader().read_whole("{}", events).ok());
  EXPECT_FALSE(ChatReader().read_whole("<html>", events).ok());
}

TEST(ChatReader, WordsOfARefusal) {
  EXPECT_EQ(error_message_of(std::string_view(R"({"error":{"message":"bad\u001b[31m\nkey "}})")), "bad [31m key");
  EXPECT_EQ(error_message_of(std::string_view(R"({"error":"bad key"})")), "bad key");
  EXPECT_EQ(error_message_of(std::string_view(R"({"detail":"Not Found"})")), "Not Found");
  EXPECT_EQ(error_message_of(std::string_view(R"({"detail":[{"msg":"m"}]})")), R"([{"msg": "m"}])");
  EXPECT_EQ(error_message_of(std::string_view("upstream is gone\n")), "upstream is gone");
  EXPECT_EQ(error_message_of(std::string_view("<html>502</html>")), "");
  EXPECT_EQ(error_message_of(std::string_view("")), "");
  EXPECT_LE(error_message_of(std::string_view(std::string(5000, 'x'))).size(), 1000u);
}

TEST(ChatBody, HoldsWhatIsSetAlone) {
  ChatQuestion question;
  question.model = "m\"";
  question.turns = {{"user", "a\nb"}};
  EXPECT_EQ(chat_body(question), R"({"model":"m\"","messages":[{"role":"user","content":"a\nb"}],"stream":true})");
  question.turns = {{"system", "s"}, {"user", "u"}, {"assistant", "c", "r", "reasoning"}, {"assistant", "c", "r", ""}};
  question.temperature = 0.25;
  question.top_p = 1.0;
  question.min_p = 0.0;
  question.top_k = 3;
  question.max_tokens = 7;
  question.seed = 18446744073709551615u;
  question.usage = true;
  EXPECT_EQ(chat_body(question),
            R"({"model":"m\"","messages":[{"role":"system","content":"s"},{"role":"user","content":"u"},)"
            R"({"role":"assistant","content":"c","reasoning":"r"},{"role":"assistant","content":"c"}],"stream":true,)"
            R"("temperature":0.25,"top_p":1,"min_p":0,"top_k":3,"max_tokens":7,"seed":18446744073709551615,)"
            R"("stream_options":{"include_usage":true}})");
}

}  // namespace
}  // namespace perigee::serve
