// Any ids: the stream's deltas add up to the result, are whole characters, and arguments are JSON.
#include <map>
#include <string>

#include "text/output_parser.h"
#include "text/testing.h"

using namespace perigee;
using namespace perigee::text;

namespace {

// A byte below 0xF0 is its own token; the others are markers and whole headers, so that mutations stay near the format.
std::vector<int32_t> ids_of(const uint8_t* data, size_t size) {
  static const std::string kPieces[16] = {"<|open|>",
                                          "<|close|>",
                                          "<|sep|>",
                                          "<|end_of_msg|>",
                                          "<|close|>think<|sep|>",
                                          "<|open|>response<|sep|>",
                                          "<|close|>response<|sep|>",
                                          "<|open|>tools<|sep|>",
                                          "<|open|>call tool=\"f\" index=\"1\"<|sep|>",
                                          "<|close|>call<|sep|>",
                                          "<|open|>argument key=\"a\" type=\"string\"<|sep|>",
                                          "<|open|>argument key=\"b\" type=\"number\"<|sep|>",
                                          "<|close|>argument<|sep|>",
                                          "<|open|>json type=\"object\"<|sep|>",
                                          "<|close|>json<|sep|>",
                                          "[PAD]"};
  std::vector<int32_t> ids;
  for (size_t i = 0; i < size; ++i) {
    if (data[i] < 0xF0) {
      ids.push_back(data[i]);
    } else {
      testing::tiny_tokenizer().encode_control(kPieces[data[i] - 0xF0], ids);
    }
  }
  return ids;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  OutputParser::Options options;
  options.thinking = (data[0] & 1) != 0;
  options.drop_calls = (data[0] & 6) == 6;
  const StopCause cause = (data[0] & 8) != 0 ? StopCause::kLength : StopCause::kNatural;
  OutputParser parser(testing::tiny_tokenizer(), options);
  std::vector<OutputEvent> events;
  for (const int32_t id : ids_of(data + 1, size - 1)) CHECK(parser.push(id, events).ok());
  parser.finish(cause, events);
  CHECK(parser.done());

  std::string reasoning, content;
  std::map<int, ParsedCall> begun;
  std::vector<ParsedCall> calls;
  for (const OutputEvent& event : events) {
    CHECK(is_valid_utf8(event.text));
    if (event.kind == OutputEvent::Kind::kReasoning) reasoning += event.text;
    if (event.kind == OutputEvent::Kind::kContent) content += event.text;
    if (event.kind == OutputEvent::Kind::kCallBegin)
      begun[event.call] = {event.call, event.text, ""};
    if (event.kind == OutputEvent::Kind::kArguments)
      begun.at(event.call).arguments_json += event.text;
    if (event.kind == OutputEvent::Kind::kCallEnd) calls.push_back(begun.at(event.call));
  }
  CHECK_EQ(reasoning, parser.result().reasoning);
  CHECK_EQ(content, parser.result().content.value_or(""));
  CHECK(calls == parser.result().tool_calls);
  CHECK(!options.drop_calls || calls.empty());
  for (const ParsedCall& call : calls) CHECK(parse_json(call.arguments_json, "arguments").ok());
  CHECK(events.back().kind == OutputEvent::Kind::kDone);
  CHECK(events.back().finish == parser.result().finish_reason);
  return 0;
}
