// A stream, put together, is the whole answer, however the engine groups its tokens.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "serve/testing.h"

namespace perigee::serve {
namespace {

using engine::RequestEnd;
using namespace testing;

constexpr const char* kTools =
    R"(,"tools":[{"type":"function","function":{"name":"find"}},{"type":"function","function":{"name":"stop"}}])";

// An answer of well-formed parts in an order that models do write.
rc::Gen<std::string> any_answer() {
  const auto text = rc::gen::map(rc::gen::container<std::vector<std::string>>(rc::gen::element<std::string>(
                                     "ab", " the", "STOP", "ST", "\xF0\x9F\x99\x82", "\xE4\xBD\xA0", "\n", "\"q\"",
                                     "<|open|", "OP ", "123", "\\")),
                                 [](const std::vector<std::string>& words) {
                                   std::string out;
                                   for (const std::string& word : words) out += word;
                                   return out;
                                 });
  const auto call =
      rc::gen::map(rc::gen::pair(text, rc::gen::element<std::string>("string", "number", "object")), [](const auto& p) {
        return "<|open|>call tool=\"find\" index=\"1\"<|sep|><|open|>argument key=\"k\" type=\"" + p.second +
               "\"<|sep|>" + p.first + "<|close|>argument<|sep|><|close|>call<|sep|>";
      });
  const auto calls = rc::gen::resize(4, rc::gen::container<std::vector<std::string>>(call));
  return rc::gen::map(rc::gen::tuple(text, text, calls), [](const auto& parts) {
    std::string out = std::get<0>(parts) + "<|close|>think<|sep|><|open|>response<|sep|>" + std::get<1>(parts) +
                      "<|close|>response<|sep|>";
    if (!std::get<2>(parts).empty()) {
      out += "<|open|>tools<|sep|>";
      for (const std::string& one : std::get<2>(parts)) out += one;
      out += "<|close|>tools<|sep|>";
    }
    return out + "<|close|>message<|sep|><|end_of_msg|>";
  });
}

struct Seen {
  std::string content, reasoning, finish, stop, tokens, usage;
  std::vector<std::string> calls;
  friend bool operator==(const Seen&, const Seen&) = default;
};

Seen whole_chat(const Json& reply) {
  Seen out;
  const Json& one = at(reply, "choices.0");
  if (at(one, "message.content").is_string()) out.content = text_at(one, "message.content");
  if (at(one, "message.reasoning").is_string()) out.reasoning = text_at(one, "message.reasoning");
  if (const Json& calls = at(one, "message.tool_calls"); calls.is_array()) {
    for (const Json& call : calls.items()) {
      out.calls.push_back(text_at(call, "id") + text_at(call, "function.name") + text_at(call, "function.arguments"));
    }
  }
  for (const Json& entry : at(one, "logprobs.content").items())
    out.tokens += text_at(entry, "token") + text_at(entry, "logprob");
  out.finish = text_at(one, "finish_reason");
  out.stop = text_at(one, "stop_reason");
  out.usage = text_at(reply, "usage");
  return out;
}

Seen streamed_chat(const std::string& body) {
  Seen out;
  for (const Json& event : events_of(body)) {
    if (!at(event, "usage").is_null()) out.usage = text_at(event, "usage");
    const Json& one = at(event, "choices.0");
    if (const Json& text = at(one, "delta.content"); text.is_string()) out.content += text.as_string();
    if (const Json& text = at(one, "delta.reasoning"); text.is_string()) out.reasoning += text.as_string();
    if (const Json& call = at(one, "delta.tool_calls.0"); !call.is_null()) {
      if (!at(call, "id").is_null()) out.calls.push_back(text_at(call, "id") + text_at(call, "function.name"));
      out.calls.back() += text_at(call, "function.arguments");
    }
    if (const Json& entries = at(one, "logprobs.content"); entries.is_array()) {
      for (const Json& entry : entries.items()) out.tokens += text_at(entry, "token") + text_at(entry, "logprob");
    }
    if (!at(one, "finish_reason").is_null()) {
      out.finish = text_at(one, "finish_reason");
      out.stop = text_at(one, "stop_reason");
    }
  }
  return out;
}

RC_GTEST_PROP(SplitProperty, AChatStreamIsTheWholeAnswer, ()) {
  const std::string answer = *any_answer();
  const auto groups = *rc::gen::container<std::vector<size_t>>(rc::gen::inRange<size_t>(1, 12));
  const bool one_call = *rc::gen::arbitrary<bool>();
  const std::string stop = *rc::gen::element<std::string>("", R"(,"stop":["STOP","the the"])");
  ApiBench bench;
  bench.answer(answer, RequestEnd::kStop);
  const std::string body = R"({"messages":[{"role":"user","content":"Hi"}],"logprobs":true)" + std::string(kTools) +
                           stop + (one_call ? R"(,"parallel_tool_calls":false)" : "");
  const Seen whole = whole_chat(bench.post_json("/v1/chat/completions", body + "}"));
  bench.answer(answer, RequestEnd::kStop, groups);
  const std::string stream = body + R"(,"stream":true,"stream_options":{"include_usage":true}})";
  const Seen streamed = streamed_chat(bench.post("/v1/chat/completions", stream)->body());
  RC_ASSERT(streamed == whole);
  for (const Json& event : events_of(bench.post("/v1/chat/completions", stream)->body())) {
    if (const Json& arguments = at(event, "choices.0.delta.tool_calls"); arguments.is_array())
      RC_ASSERT(!arguments.items().empty());
  }
}

RC_GTEST_PROP(SplitProperty, ACompletionStreamIsTheWholeAnswerForAnyIds, ()) {
  const int32_t vocab = text::testing::demo_tokenizer().vocab_size();
  const auto ids = *rc::gen::container<std::vector<int32_t>>(rc::gen::inRange<int32_t>(0, vocab));
  const auto groups = *rc::gen::container<std::vector<size_t>>(rc::gen::inRange<size_t>(1, 12));
  const RequestEnd end = *rc::gen::element(RequestEnd::kStop, RequestEnd::kLength);
  ApiBench bench;
  const std::string body = R"({"prompt":"ab","logprobs":2,"echo":true,"stop":["e","th"],"skip_special_tokens":false)";
  const auto play = [&](const std::vector<size_t>& sizes) {
    bench.backend.script = [=](const auto&, size_t) { return Script{.ids = ids, .groups = sizes, .end = end}; };
  };
  play({});
  const Json whole = bench.post_json("/v1/completions", body + "}");
  play(groups);
  std::string text, finish;
  std::vector<Json> tokens, offsets;
  for (const Json& event : events_of(bench.post("/v1/completions", body + R"(,"stream":true})")->body())) {
    text += text_at(event, "choices.0.text");
    for (const Json& token : at(event, "choices.0.logprobs.tokens").items()) tokens.push_back(token);
    for (const Json& offset : at(event, "choices.0.logprobs.text_offset").items()) offsets.push_back(offset);
    finish = text_at(event, "choices.0.finish_reason");
  }
  RC_ASSERT(text == text_at(whole, "choices.0.text"));
  RC_ASSERT(tokens == at(whole, "choices.0.logprobs.tokens").items());
  RC_ASSERT(offsets == at(whole, "choices.0.logprobs.text_offset").items());
  RC_ASSERT(finish == text_at(whole, "choices.0.finish_reason"));
}

RC_GTEST_PROP(SplitProperty, AMessagesStreamHasTheBlocksOfTheWholeAnswer, ()) {
  const std::string answer = *any_answer();
  const auto groups = *rc::gen::container<std::vector<size_t>>(rc::gen::inRange<size_t>(1, 12));
  ApiBench bench;
  const std::string body = R"({"max_tokens":900,"messages":[{"role":"user","content":"Hi"}],"stop_sequences":["STOP"],
      "tools":[{"name":"find","input_schema":{}}])";
  bench.answer(answer);
  const Json whole = bench.post_json("/v1/messages", body + "}");
  bench.answer(answer, RequestEnd::kStop, groups);
  std::vector<std::string> texts;
  for (const Json& event : events_of(bench.post("/v1/messages", body + R"(,"stream":true})")->body())) {
    if (text_at(event, "type") == "content_block_start") texts.emplace_back();
    for (const char* key : {"delta.text", "delta.thinking", "delta.partial_json"}) {
      if (at(event, key).is_string()) texts.back() += text_at(event, key);
    }
  }
  const std::vector<Json>& blocks = at(whole, "content").items();
  RC_ASSERT(blocks.size() == texts.size());
  for (size_t i = 0; i < blocks.size(); ++i) {
    const std::string type = text_at(blocks[i], "type");
    if (type == "tool_use") {
      RC_ASSERT(text::print_json(json_of(texts[i])) == text_at(blocks[i], "input"));
    } else {
      RC_ASSERT(texts[i] == text_at(blocks[i], type));
    }
  }
}

}  // namespace
}  // namespace perigee::serve
