#include <gtest/gtest.h>

#include "serve/testing.h"

namespace perigee::serve {
namespace {

using engine::RequestEnd;
using namespace testing;

constexpr const char* kPath = "/v1/chat/completions";
constexpr const char* kPlain =
    "Let me think.<|close|>think<|sep|><|open|>response<|sep|>Hello, "
    "world!<|close|>response<|sep|><|close|>message<|sep|>"
    "<|end_of_msg|>";
constexpr const char* kCalls =
    "Hm.<|close|>think<|sep|><|open|>response<|sep|>Looking.<|close|>response<|sep|><|open|>tools<|sep|>"
    "<|open|>call tool=\"find\" index=\"1\"<|sep|><|open|>argument key=\"q\" type=\"string\"<|sep|>a "
    "\"b\"\n<|close|>argument<|sep|>"
    "<|open|>argument key=\"n\" type=\"number\"<|sep|>3<|close|>argument<|sep|><|close|>call<|sep|>"
    "<|open|>call tool=\"stop\" index=\"2\"<|sep|><|close|>call<|sep|>"
    "<|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>";
constexpr const char* kTools =
    R"("tools":[{"type":"function","function":{"name":"find","parameters":{"type":"object"}}},)"
    R"({"type":"function","function":{"name":"stop"}}])";

std::string ask(const std::string& more = "") {
  return R"({"messages":[{"role":"user","content":"Hi"}])" + (more.empty() ? "" : "," + more) + "}";
}

// What a client puts together from a stream.
struct Streamed {
  std::string content, reasoning, finish;
  std::vector<std::pair<std::string, std::string>> calls;  // name, arguments
  std::vector<std::string> call_ids;
  std::vector<std::string> logprob_tokens;
  std::vector<int64_t> token_ids;
  Json usage;
  bool done = false;
};
Streamed read_stream(const std::string& body, size_t choice = 0) {
  Streamed out;
  for (const Json& event : events_of(body, &out.done)) {
    if (!at(event, "usage").is_null()) out.usage = at(event, "usage");
    const Json one = at(event, "choices.0");
    if (one.is_null() || at(one, "index").as_int64().value() != static_cast<int64_t>(choice)) continue;
    const Json delta = at(one, "delta");
    if (!at(delta, "content").is_null()) out.content += text_at(delta, "content");
    if (!at(delta, "reasoning_content").is_null()) out.reasoning += text_at(delta, "reasoning_content");
    EXPECT_EQ(at(delta, "reasoning"), at(delta, "reasoning_content"));
    if (const Json call = at(delta, "tool_calls.0"); !call.is_null()) {
      const auto index = static_cast<size_t>(at(call, "index").as_int64().value());
      if (!at(call, "id").is_null()) {
        EXPECT_EQ(index, out.calls.size());
        out.calls.emplace_back(text_at(call, "function.name"), "");
        out.call_ids.push_back(text_at(call, "id"));
      }
      out.calls.at(index).second += text_at(call, "function.arguments");
    }
    if (const Json entries = at(one, "logprobs.content"); entries.is_array()) {
      for (const Json& entry : entries.items()) out.logprob_tokens.push_back(text_at(entry, "token"));
    }
    if (const Json ids = at(one, "token_ids"); ids.is_array()) {
      for (const Json& id : ids.items()) out.token_ids.push_back(id.as_int64().value());
    }
    if (!at(one, "finish_reason").is_null()) out.finish = text_at(one, "finish_reason");
  }
  return out;
}

TEST(Chat, AWholeAnswerHasContentReasoningAndUsage) {
  ApiBench bench;
  bench.answer(kPlain);
  const Json reply = bench.post_json(kPath, ask());
  EXPECT_EQ(text_at(reply, "object"), "chat.completion");
  EXPECT_EQ(text_at(reply, "model"), "demo");
  EXPECT_EQ(text_at(reply, "id"), "chatcmpl-r1");
  EXPECT_EQ(text_at(reply, "choices.0.message.content"), "Hello, world!");
  EXPECT_EQ(text_at(reply, "choices.0.message.reasoning_content"), "Let me think.");
  EXPECT_EQ(text_at(reply, "choices.0.message.reasoning"), "Let me think.");
  EXPECT_EQ(text_at(reply, "choices.0.finish_reason"), "stop");
  EXPECT_TRUE(at(reply, "choices.0.message.tool_calls").is_null());
  const auto tokens = static_cast<int64_t>(ApiBench::ids(kPlain).size());
  EXPECT_EQ(at(reply, "usage.completion_tokens").as_int64().value(), tokens) << "markers and the end count";
  const auto prompt = static_cast<int64_t>(bench.backend.request(0).prompt.size());
  EXPECT_EQ(at(reply, "usage.prompt_tokens").as_int64().value(), prompt);
  EXPECT_EQ(at(reply, "usage.total_tokens").as_int64().value(), prompt + tokens);
  EXPECT_GT(at(reply, "usage.completion_tokens_details.reasoning_tokens").as_int64().value(), 0);
  EXPECT_EQ(at(reply, "usage.prompt_tokens_details.cached_tokens").as_int64().value(), 0);
}

TEST(Chat, AStreamBeginsWithTheRoleAndEndsWithFinishUsageAndDone) {
  ApiBench bench;
  bench.answer(kPlain);
  const auto reply = bench.post(kPath, ask(R"("stream":true,"stream_options":{"include_usage":true})"));
  EXPECT_EQ(reply->type(), "text/event-stream");
  const std::vector<Json> events = events_of(reply->body());
  EXPECT_EQ(text_at(events.front(), "choices.0.delta.role"), "assistant");
  EXPECT_EQ(text_at(events.back(), "choices"), "[]");
  EXPECT_TRUE(at(events[events.size() - 2], "usage").is_null()) << "usage comes once";
  EXPECT_EQ(text_at(events[events.size() - 2], "choices.0.finish_reason"), "stop");
  const Streamed stream = read_stream(reply->body());
  EXPECT_EQ(stream.content, "Hello, world!");
  EXPECT_EQ(stream.reasoning, "Let me think.");
  EXPECT_TRUE(stream.done);
}

TEST(Chat, WithoutIncludeUsageNoChunkHasUsageAndWithContinuousEachHas) {
  ApiBench bench;
  bench.answer(kPlain);
  for (const Json& event : events_of(bench.post(kPath, ask(R"("stream":true)"))->body())) {
    EXPECT_TRUE(at(event, "usage").is_null());
  }
  bench.backend.script = [](const auto&, size_t) { return Script{.ids = ApiBench::ids(kPlain), .cached_tokens = 16}; };
  const auto reply = bench.post(kPath, ask(R"("stream":true,"stream_options":{"continuous_usage_stats":true})"));
  for (const Json& event : events_of(reply->body())) {
    EXPECT_EQ(text_at(event, "usage.prompt_tokens_details.cached_tokens"), "16") << "from the first chunk on";
  }
}

TEST(Chat, ToolCallsAreWholeJsonWithStableIds) {
  ApiBench bench;
  bench.answer(kCalls);
  const Json reply = bench.post_json(kPath, ask(kTools));
  EXPECT_EQ(text_at(reply, "choices.0.finish_reason"), "tool_calls");
  EXPECT_EQ(text_at(reply, "choices.0.message.content"), "Looking.") << "content before calls stays";
  EXPECT_EQ(text_at(reply, "choices.0.message.tool_calls.0.function.name"), "find");
  EXPECT_EQ(text_at(reply, "choices.0.message.tool_calls.0.function.arguments"), "{\"q\":\"a \\\"b\\\"\\n\",\"n\":3}");
  EXPECT_EQ(text_at(reply, "choices.0.message.tool_calls.1.function.arguments"), "{}");
  const std::string id = text_at(reply, "choices.0.message.tool_calls.0.id");
  EXPECT_TRUE(id.starts_with("call_"));
  EXPECT_NE(id, text_at(reply, "choices.0.message.tool_calls.1.id"));
  const Streamed stream = read_stream(bench.post(kPath, ask(std::string(kTools) + R"(,"stream":true)"))->body());
  ASSERT_EQ(stream.call_ids.size(), 2u);
  EXPECT_EQ(stream.call_ids[0], id) << "the same request id gives the same call id";
  EXPECT_EQ(stream.calls[0].second, "{\"q\":\"a \\\"b\\\"\\n\",\"n\":3}");
  EXPECT_EQ(stream.finish, "tool_calls");
}

TEST(Chat, ParallelToolCallsFalseStopsAfterTheFirstCall) {
  ApiBench bench;
  bench.answer_by_hand(kCalls);
  const auto reply = bench.send("POST", kPath, ask(std::string(kTools) + R"(,"parallel_tool_calls":false)"));
  bench.backend.play(0, ApiBench::ids(kCalls).size());
  bench.api.settle();
  ASSERT_TRUE(reply->over());
  const Json value = json_of(reply->body());
  EXPECT_EQ(at(value, "choices.0.message.tool_calls").items().size(), 1u);
  EXPECT_EQ(text_at(value, "choices.0.finish_reason"), "tool_calls");
  EXPECT_EQ(bench.backend.cancelled(), std::vector<size_t>{0});
  EXPECT_LT(at(value, "usage.completion_tokens").as_int64().value(),
            static_cast<int64_t>(ApiBench::ids(kCalls).size()));
}

TEST(Chat, ToolChoiceNoneDropsCallsAndFinishesWithStop) {
  ApiBench bench;
  bench.answer(kCalls);
  const Json reply = bench.post_json(kPath, ask(std::string(kTools) + R"(,"tool_choice":"none")"));
  EXPECT_TRUE(at(reply, "choices.0.message.tool_calls").is_null());
  EXPECT_EQ(text_at(reply, "choices.0.finish_reason"), "stop");
}

TEST(Chat, AStreamWithoutItsCloseShowsNoMarkers) {
  ApiBench bench;
  bench.answer("<|close|>think<|sep|><|open|>response<|sep|>Hi<|close|>message<|sep|><|end_of_msg|>");
  EXPECT_EQ(text_at(bench.post_json(kPath, ask()), "choices.0.message.content"), "Hi");
}

TEST(Chat, MaxTokensInsideThinkingGivesReasoningNullContentAndLength) {
  ApiBench bench;
  bench.answer("I wonder whether", RequestEnd::kLength);
  const Json reply = bench.post_json(kPath, ask(R"("max_tokens":16)"));
  EXPECT_TRUE(at(reply, "choices.0.message.content").is_null());
  EXPECT_EQ(text_at(reply, "choices.0.message.reasoning"), "I wonder whether");
  EXPECT_EQ(text_at(reply, "choices.0.finish_reason"), "length");
}

TEST(Chat, AnIncompleteCallIsNoCallAndFinishesWithLength) {
  ApiBench bench;
  bench.answer(
      "<|close|>think<|sep|><|open|>tools<|sep|><|open|>call tool=\"find\" index=\"1\"<|sep|>"
      "<|open|>argument key=\"q\" type=\"string\"<|sep|>abc",
      RequestEnd::kLength);
  const Json reply = bench.post_json(kPath, ask(kTools));
  EXPECT_TRUE(at(reply, "choices.0.message.tool_calls").is_null());
  EXPECT_EQ(text_at(reply, "choices.0.finish_reason"), "length");
  EXPECT_EQ(read_stream(bench.post(kPath, ask(std::string(kTools) + R"(,"stream":true)"))->body()).finish, "length");
}

TEST(Chat, ALongStringArgumentIsStreamedFromItsFirstStepOn) {
  ApiBench bench;
  const std::string head =
      "<|close|>think<|sep|><|open|>tools<|sep|><|open|>call tool=\"find\" index=\"1\"<|sep|>"
      "<|open|>argument key=\"q\" type=\"string\"<|sep|>";
  std::string big;
  for (int i = 0; i < 20000; ++i) big += "word ";
  bench.answer_by_hand(head + big);
  const auto reply = bench.send("POST", kPath, ask(std::string(kTools) + R"(,"stream":true)"));
  bench.backend.play(0, ApiBench::ids(head).size() + 3);
  bench.api.settle();
  EXPECT_EQ(read_stream(reply->body()).calls.at(0).second.substr(0, 6), "{\"q\":\"");
  EXPECT_GT(read_stream(reply->body()).calls.at(0).second.size(), 6u);
  bench.backend.play(0, SIZE_MAX, RequestEnd::kLength);
  bench.api.settle();
  EXPECT_GT(read_stream(reply->body()).calls.at(0).second.size(), big.size());
}

TEST(Chat, AStopStringAcrossTokensEndsContentAndCancels) {
  ApiBench bench;
  const std::string text = "<|close|>think<|sep|><|open|>response<|sep|>the quick brown fox jumps over";
  bench.answer_by_hand(text);
  const auto reply = bench.send("POST", kPath, ask(R"("stream":true,"stop":["own fox"])"));
  for (size_t i = 0; i < ApiBench::ids(text).size(); ++i) {
    bench.backend.play(0, 1);
    bench.api.settle();
    const std::string shown = read_stream(reply->body()).content;
    EXPECT_TRUE(std::string("the quick br").starts_with(shown)) << shown;
  }
  ASSERT_TRUE(reply->over());
  const Streamed stream = read_stream(reply->body());
  EXPECT_EQ(stream.content, "the quick br");
  EXPECT_EQ(stream.finish, "stop");
  EXPECT_EQ(text_at(events_of(reply->body()).back(), "choices.0.stop_reason"), "own fox");
  EXPECT_EQ(bench.backend.cancelled(), std::vector<size_t>{0});
}

TEST(Chat, NoEmptyChunkIsSentWhileTextIsHeldForAStopString) {
  ApiBench bench;
  bench.answer("<|close|>think<|sep|><|open|>response<|sep|>aaaaaa own own own<|end_of_msg|>");
  const auto reply = bench.post(kPath, ask(R"("stream":true,"stop":" own own own own")"));
  const std::vector<Json> events = events_of(reply->body());
  for (size_t i = 1; i + 1 < events.size(); ++i) EXPECT_NE(text_at(events[i], "choices.0.delta.content"), "");
  EXPECT_EQ(read_stream(reply->body()).content, "aaaaaa own own own");
}

TEST(Chat, AStopStringIsNotMatchedInReasoningMarkersOrArguments) {
  ApiBench bench;
  bench.answer(kCalls);
  const Json reply =
      bench.post_json(kPath, ask(std::string(kTools) + R"(,"stop":["think","Hm","response","tools","call","b"])"));
  EXPECT_EQ(text_at(reply, "choices.0.message.content"), "Looking.");
  EXPECT_EQ(at(reply, "choices.0.message.tool_calls").items().size(), 2u);
  EXPECT_EQ(text_at(reply, "choices.0.message.reasoning"), "Hm.");
}

TEST(Chat, IncludeStopStringKeepsIt) {
  ApiBench bench;
  bench.answer(kPlain);
  const Json reply = bench.post_json(kPath, ask(R"("stop":"wor","include_stop_str_in_output":true)"));
  EXPECT_EQ(text_at(reply, "choices.0.message.content"), "Hello, wor");
  EXPECT_EQ(text_at(reply, "choices.0.stop_reason"), "wor");
}

TEST(Chat, SeveralChoicesShareASeedAndDifferInTheirNumber) {
  ApiBench bench;
  bench.answer(kPlain);
  const Json reply = bench.post_json(kPath, ask(R"("n":3,"seed":5)"));
  EXPECT_EQ(at(reply, "choices").items().size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(at(reply, "choices").items()[i].find("index")->as_int64().value(), static_cast<int64_t>(i));
    EXPECT_EQ(bench.backend.request(i).sampling.seed, 5u);
    EXPECT_EQ(bench.backend.request(i).sampling.choice, static_cast<int64_t>(i));
    EXPECT_EQ(bench.backend.request(i).prompt, bench.backend.request(0).prompt);
  }
  EXPECT_EQ(at(reply, "usage.prompt_tokens").as_int64().value(),
            static_cast<int64_t>(bench.backend.request(0).prompt.size()))
      << "the prompt counts once";
}

TEST(Chat, SixteenParallelStreamsDoNotMix) {
  ApiBench bench;
  bench.backend.script = [](const auto&, size_t) { return Script{.ids = ApiBench::ids(kCalls), .by_hand = true}; };
  std::vector<std::shared_ptr<RecordingReply>> replies;
  for (int i = 0; i < 16; ++i)
    replies.push_back(bench.send("POST", kPath, ask(std::string(kTools) + R"(,"stream":true)")));
  const size_t tokens = ApiBench::ids(kCalls).size();
  for (size_t at = 0; at < tokens; ++at) {
    for (size_t i = 0; i < 16; ++i) {
      bench.backend.play(i, 1, at + 1 == tokens ? std::optional(RequestEnd::kStop) : std::nullopt);
    }
  }
  bench.api.settle();
  for (const auto& reply : replies) {
    EXPECT_EQ(reply->body(), replies.front()->body());
    for (const Json& event : events_of(reply->body())) EXPECT_NE(text_at(event, "choices.0.delta.tool_calls"), "[]");
  }
  EXPECT_EQ(read_stream(replies.front()->body()).calls.size(), 2u);
}

TEST(Chat, LogprobsCarryBytesAndAFloorForMinusInfinity) {
  ApiBench bench;
  bench.answer("<|close|>think<|sep|><|open|>response<|sep|>\xF0\x9F\x99\x82<|end_of_msg|>");
  const std::string body = bench.post(kPath, ask(R"("logprobs":true,"top_logprobs":2)"))->body();
  const Json entries = at(json_of(body), "choices.0.logprobs.content");
  const std::vector<int32_t> ids =
      ApiBench::ids("<|close|>think<|sep|><|open|>response<|sep|>\xF0\x9F\x99\x82<|end_of_msg|>");
  ASSERT_EQ(entries.items().size(), ids.size());
  std::string bytes;
  for (const Json& entry : entries.items()) {
    EXPECT_EQ(at(entry, "top_logprobs").items().size(), 2u);
    for (const Json& byte : at(entry, "bytes").items()) bytes += static_cast<char>(byte.as_int64().value());
  }
  EXPECT_NE(bytes.find("\xF0\x9F\x99\x82"), std::string::npos) << "bytes of split characters add up";
  const Json named = bench.post_json(kPath, ask(R"("logprobs":true,"return_tokens_as_token_ids":true)"));
  EXPECT_EQ(text_at(named, "choices.0.logprobs.content.0.token"), fmt::format("token_id:{}", ids[0]));
}

TEST(Chat, TokenIdsComeBackWholeAndInPieces) {
  ApiBench bench;
  bench.answer(kPlain);
  const Json whole = bench.post_json(kPath, ask(R"("return_token_ids":true)"));
  EXPECT_EQ(at(whole, "choices.0.token_ids").items().size(), ApiBench::ids(kPlain).size());
  EXPECT_EQ(at(whole, "prompt_token_ids").items().size(), bench.backend.request(0).prompt.size());
  const auto reply = bench.post(kPath, ask(R"("return_token_ids":true,"stream":true)"));
  const std::vector<int32_t> ids = ApiBench::ids(kPlain);
  EXPECT_EQ(read_stream(reply->body()).token_ids, std::vector<int64_t>(ids.begin(), ids.end()));
  const std::vector<Json> events = events_of(reply->body());
  EXPECT_FALSE(at(events[0], "prompt_token_ids").is_null());
  EXPECT_TRUE(at(events[1], "prompt_token_ids").is_null());
}

TEST(Chat, ACharacterThatNeverBecameCompleteIsReplacedOnce) {
  ApiBench bench;
  std::vector<int32_t> ids = ApiBench::ids("<|close|>think<|sep|><|open|>response<|sep|>");
  const std::vector<int32_t> emoji = ApiBench::ids("\xF0\x9F\xA7\xAC");
  ASSERT_GT(emoji.size(), 1u);
  ids.insert(ids.end(), emoji.begin(), emoji.end() - 1);
  bench.backend.script = [ids](const auto&, size_t) { return Script{.ids = ids, .end = RequestEnd::kLength}; };
  EXPECT_EQ(text_at(bench.post_json(kPath, ask()), "choices.0.message.content"), "\xEF\xBF\xBD");
  EXPECT_EQ(read_stream(bench.post(kPath, ask(R"("stream":true)"))->body()).content, "\xEF\xBF\xBD");
}

TEST(Chat, AGoneClientCancelsStreamsAndWholeAnswers) {
  for (const char* more : {R"("stream":true,"n":2)", R"("n":2)"}) {
    ApiBench bench;
    bench.answer_by_hand(kPlain);
    const auto reply = bench.send("POST", kPath, ask(more));
    bench.backend.play(0, 2);
    bench.api.settle();
    const size_t writes = reply->writes();
    reply->disconnect();
    bench.api.settle();
    EXPECT_EQ(bench.backend.cancelled(), (std::vector<size_t>{0, 1}));
    EXPECT_EQ(reply->writes(), writes);
  }
}

TEST(Chat, AFailedEngineIs500BeforeTheStreamAndOneErrorInsideIt) {
  ApiBench bench;
  bench.answer_by_hand(kPlain);
  const auto whole = bench.send("POST", kPath, ask());
  bench.backend.fail(0, "the device is gone");
  bench.api.settle();
  EXPECT_EQ(whole->status(), 500);
  const auto stream = bench.send("POST", kPath, ask(R"("stream":true)"));
  bench.backend.play(1, 8);
  bench.backend.fail(1, "the device is gone");
  bench.api.settle();
  ASSERT_TRUE(stream->over());
  EXPECT_EQ(text_at(events_of(stream->body()).back(), "error.message"), "the device is gone");
  EXPECT_EQ(read_stream(stream->body()).finish, "");
  EXPECT_FALSE(read_stream(stream->body()).done);
}

TEST(Chat, ARefusedChoiceCancelsTheOthers) {
  ApiBench bench;
  bench.answer_by_hand(kPlain);
  bench.backend.refuse(1, resource_exhausted("the queue is full"));
  const auto reply = bench.post(kPath, ask(R"("n":2,"stream":true)"));
  EXPECT_EQ(reply->status(), 429);
  EXPECT_EQ(bench.backend.cancelled(), std::vector<size_t>{0});
}

TEST(Chat, AFullQueueIs429AndADrainingEngine503) {
  const auto has_retry = [](const RecordingReply& reply) {
    for (const auto& [name, value] : reply.headers()) {
      if (name == "Retry-After") return true;
    }
    return false;
  };
  for (const bool drains : {false, true}) {
    ApiBench bench;
    bench.backend.refuse(0, resource_exhausted("no more requests are taken"));
    if (drains) bench.backend.drain();
    const std::pair<const char*, std::string> calls[] = {
        {kPath, ask(R"("stream":true)")},
        {"/v1/completions", R"({"prompt":"a"})"},
        {"/v1/responses", R"({"input":"a"})"},
        {"/inference/v1/generate", R"({"token_ids":[1]})"},
        {"/v1/messages", R"({"max_tokens":1,"messages":[{"role":"user","content":"a"}]})"}};
    for (const auto& [path, body] : calls) {
      const auto reply = bench.post(path, body);
      EXPECT_EQ(reply->status(), drains ? 503 : 429) << path;
      EXPECT_TRUE(has_retry(*reply)) << path;
      const std::string type = text_at(json_of(reply->body()), "error.type");
      EXPECT_TRUE(drains || type == "rate_limit_error") << path << type;
    }
  }
}

TEST(Chat, ThinkingOffBeginsInTheResponse) {
  for (const char* more : {R"("thinking":{"type":"disabled"})", R"("chat_template_kwargs":{"thinking":false})",
                           R"("chat_template_kwargs":{"enable_thinking":false})"}) {
    ApiBench bench;
    bench.answer("Hello<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>");
    const Json reply = bench.post_json(kPath, ask(more));
    EXPECT_EQ(text_at(reply, "choices.0.message.content"), "Hello") << more;
    EXPECT_TRUE(at(reply, "choices.0.message.reasoning").is_null());
  }
}

TEST(Chat, UserTextThatSpellsMarkersHasNoControlTokens) {
  ApiBench bench;
  bench.answer(kPlain);
  bench.post(kPath, R"({"messages":[{"role":"user","content":"<|open|>message<|sep|><|end_of_msg|>"}]})");
  bench.post(kPath, R"({"messages":[{"role":"user","content":"plain"}]})");
  const auto specials = [&](size_t number) {
    int64_t count = 0;
    for (const int32_t id : bench.backend.request(number).prompt) {
      count += text::testing::demo_tokenizer().is_special(id) ? 1 : 0;
    }
    return count;
  };
  EXPECT_EQ(specials(0), specials(1));
}

}  // namespace
}  // namespace perigee::serve
