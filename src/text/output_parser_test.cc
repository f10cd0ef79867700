#include "text/output_parser.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <map>

#include "text/json.h"
#include "text/testing.h"

namespace perigee::text {
namespace {

using testing::demo_tokenizer;
using testing::tiny_tokenizer;
using Events = std::vector<OutputEvent>;
using Ids = std::vector<int32_t>;
using Kind = OutputEvent::Kind;

// Shorthand of a script: O, C, S and E stand for the markers, everything in quotes for text.
struct Script {
  Ids ids;
  Script& control(std::string_view marker) {
    ids.push_back(*demo_tokenizer().special_id(marker));
    return *this;
  }
  Script& text(std::string_view words) {
    demo_tokenizer().encode_text(words, ids);
    return *this;
  }
  Script& open(std::string_view header) {
    return control("<|open|>").text(header).control("<|sep|>");
  }
  Script& close(std::string_view tag) { return control("<|close|>").text(tag).control("<|sep|>"); }
  Script& end() { return control("<|end_of_msg|>"); }
  Script& byte(int value) {
    ids.push_back(demo_tokenizer().encode_text("a")[0] - 'a' + value);
    return *this;
  }
};

constexpr OutputParser::Options kThinking{};
constexpr OutputParser::Options not_thinking() {
  OutputParser::Options options;
  options.thinking = false;
  return options;
}

ParsedOutput parsed(const Script& script, const OutputParser::Options& options,
                    StopCause cause = StopCause::kNatural) {
  return *parse_output(demo_tokenizer(), options, script.ids, cause);
}

Events events_of(const Tokenizer& tokenizer, const OutputParser::Options& options, const Ids& ids,
                 StopCause cause) {
  OutputParser parser(tokenizer, options);
  Events events;
  for (const int32_t id : ids) EXPECT_TRUE(parser.push(id, events).ok());
  parser.finish(cause, events);
  return events;
}

// What a client that only sees the stream has at the end; calls without an end are left out.
ParsedOutput put_together(const Events& events) {
  ParsedOutput out;
  std::map<int, ParsedCall> open_calls;
  for (const OutputEvent& event : events) {
    switch (event.kind) {
      case Kind::kReasoning:
        out.reasoning += event.text;
        break;
      case Kind::kContent:
        out.content = out.content.value_or("") + event.text;
        break;
      case Kind::kCallBegin:
        open_calls[event.call] = {event.call, event.text, ""};
        break;
      case Kind::kArguments:
        open_calls.at(event.call).arguments_json += event.text;
        break;
      case Kind::kCallEnd:
        out.tool_calls.push_back(open_calls.at(event.call));
        break;
      case Kind::kDone:
        out.finish_reason = event.finish;
        break;
    }
  }
  return out;
}

Script call_script(std::string_view arguments_of) {
  Script script;
  script.close("think")
      .open("response")
      .close("response")
      .open("tools")
      .open("call tool=\"f\" index=\"1\"");
  if (!arguments_of.empty())
    script.open("argument key=\"k\" type=\"string\"").text(arguments_of).close("argument");
  return script;
}

TEST(OutputGolden, ResultsAreThoseOfTheReaderOfWholeAnswers) {
  const Json golden = testing::read_golden("output.json");
  ASSERT_GE(golden.find("cases")->items().size(), 400u);
  for (const Json& item : golden.find("cases")->items()) {
    Script script;
    for (const Json& word : item.find("script")->items()) {
      const bool is_marker = demo_tokenizer().special_id(word.as_string()).has_value();
      is_marker ? script.control(word.as_string()) : script.text(word.as_string());
    }
    OutputParser::Options options;
    options.thinking = item.find("thinking")->as_bool();
    options.drop_calls = item.find("drop_calls")->as_bool();
    const StopCause cause =
        item.find("natural")->as_bool() ? StopCause::kNatural : StopCause::kLength;
    const ParsedOutput output = parsed(script, options, cause);
    const Json& expected = *item.find("result");
    const std::string shown = print_json(*item.find("script"));
    EXPECT_EQ(output.reasoning, expected.find("reasoning")->as_string()) << shown;
    const Json* content = expected.find_set("content");
    EXPECT_EQ(output.content,
              content == nullptr ? std::nullopt : std::optional(content->as_string()))
        << shown;
    EXPECT_EQ(finish_reason_name(output.finish_reason), expected.find("finish_reason")->as_string())
        << shown;
    std::vector<ParsedCall> calls;
    for (const Json& call : expected.find("tool_calls")->items()) {
      calls.push_back({static_cast<int>(*call.find("index")->as_int64()),
                       call.find("name")->as_string(), call.find("arguments")->as_string()});
    }
    EXPECT_EQ(output.tool_calls, calls) << shown;
  }
}

TEST(OutputParser, ReadsReasoningContentAndCalls) {
  Script script;
  script.text("Let me look.")
      .close("think")
      .open("response")
      .text("One moment.")
      .close("response")
      .open("tools");
  script.open("call tool=\"a&quot;&amp;b\" index=\"1\"");
  script.open("argument key=\"city\" type=\"string\"").text("São \"Paulo\"\n").close("argument");
  script.open("argument key=\"days\" type=\"number\"").text("3").close("argument");
  script.open("argument key=\"opts\" type=\"object\"")
      .text("{ \"deep\": [1.0, true] }")
      .close("argument")
      .close("call");
  script.open("call tool=\"now\" index=\"2\"").close("call").close("tools").close("message").end();
  const ParsedOutput output = parsed(script, kThinking);
  EXPECT_EQ(output.reasoning, "Let me look.");
  EXPECT_EQ(output.content, "One moment.");
  ASSERT_EQ(output.tool_calls.size(), 2u);
  EXPECT_EQ(output.tool_calls[0],
            (ParsedCall{0, "a\"&b",
                        R"({"city":"São \"Paulo\"\n","days":3,"opts":{"deep":[1.0,true]}})"}));
  EXPECT_EQ(output.tool_calls[1], (ParsedCall{1, "now", "{}"}));
  EXPECT_EQ(output.finish_reason, FinishReason::kToolCalls);
}

TEST(OutputParser, AModelThatSkipsTheCloseOfThinkStillSpeaks) {
  Script to_response, to_tools;
  to_response.text("hm").open("response").text("Hi").close("response").close("message").end();
  EXPECT_EQ(parsed(to_response, kThinking), (ParsedOutput{"hm", "Hi", {}, FinishReason::kStop}));
  to_tools.text("hm")
      .open("tools")
      .open("call tool=\"f\" index=\"1\"")
      .close("call")
      .close("tools")
      .end();
  EXPECT_EQ(parsed(to_tools, kThinking),
            (ParsedOutput{"hm", std::nullopt, {{0, "f", "{}"}}, FinishReason::kToolCalls}));
}

TEST(OutputParser, AnEchoOfOpenThinkAtTheStartIsSwallowed) {
  Script script;
  script.open("think")
      .text("hm")
      .close("think")
      .open("response")
      .text("Hi")
      .close("response")
      .end();
  EXPECT_EQ(parsed(script, kThinking), (ParsedOutput{"hm", "Hi", {}, FinishReason::kStop}));
}

TEST(OutputParser, TextBetweenTheChannelsIsDropped) {
  Script script;
  script.close("think")
      .text("\n lost \n")
      .open("response")
      .text("Hi")
      .close("response")
      .text("lost")
      .open("tools");
  script.text("lost")
      .open("call tool=\"f\"")
      .text("lost")
      .close("call")
      .text("lost")
      .close("tools")
      .text("lost");
  script.close("message").text("lost").end();
  EXPECT_EQ(parsed(script, kThinking),
            (ParsedOutput{"", "Hi", {{0, "f", "{}"}}, FinishReason::kToolCalls}));
}

TEST(OutputParser, ContentBeforeToolsIsKept) {
  Script script;
  script.close("think")
      .open("response")
      .text("First.")
      .open("tools")
      .open("call tool=\"f\"")
      .close("call")
      .end();
  EXPECT_EQ(parsed(script, kThinking),
            (ParsedOutput{"", "First.", {{0, "f", "{}"}}, FinishReason::kToolCalls}));
}

TEST(OutputParser, AnAnswerThatEndsWithoutCloseOfResponseShowsNoMarker) {
  Script script;
  script.text("Hi").close("message").end();
  const ParsedOutput expected{"", "Hi", {}, FinishReason::kStop};
  EXPECT_EQ(parsed(script, not_thinking()), expected);
  EXPECT_EQ(
      put_together(events_of(demo_tokenizer(), not_thinking(), script.ids, StopCause::kNatural)),
      expected);
}

TEST(OutputParser, NoTextOfAMarkerIsEverInADelta) {
  Script script;
  script.text("a")
      .close("think")
      .open("response")
      .text("b")
      .close("response")
      .close("message")
      .end();
  for (const OutputEvent& event :
       events_of(demo_tokenizer(), kThinking, script.ids, StopCause::kNatural)) {
    EXPECT_EQ(event.text.find("<|"), std::string::npos);
    EXPECT_EQ(event.text.find("response"), std::string::npos);
  }
}

TEST(OutputParser, LengthInsideThinkIsReasoningWithoutContent) {
  Script script;
  script.text("still thinking");
  EXPECT_EQ(parsed(script, kThinking, StopCause::kLength),
            (ParsedOutput{"still thinking", std::nullopt, {}, FinishReason::kLength}));
  Script in_marker;
  in_marker.text("still thinking").control("<|close|>").text("thi");
  EXPECT_EQ(parsed(in_marker, kThinking, StopCause::kLength),
            (ParsedOutput{"still thinking", std::nullopt, {}, FinishReason::kLength}));
}

TEST(OutputParser, LengthInsideACallDropsTheCallAndFinishesLength) {
  Script script = call_script("value");
  const ParsedOutput expected{"", "", {}, FinishReason::kLength};
  EXPECT_EQ(parsed(script, kThinking, StopCause::kLength), expected);
  const Events events = events_of(demo_tokenizer(), kThinking, script.ids, StopCause::kLength);
  EXPECT_EQ(events.back().kind, Kind::kDone);
  EXPECT_EQ(events.back().finish, FinishReason::kLength);
  EXPECT_TRUE(put_together(events).tool_calls.empty());
}

TEST(OutputParser, LengthAfterACompleteCallIsStillLength) {
  Script script = call_script("value");
  script.close("call").open("call tool=\"g\"");
  const ParsedOutput output = parsed(script, kThinking, StopCause::kLength);
  EXPECT_EQ(output.tool_calls, (std::vector<ParsedCall>{{0, "f", R"({"k":"value"})"}}));
  EXPECT_EQ(output.finish_reason, FinishReason::kLength);
}

TEST(OutputParser, ANaturalStopInsideACallIsNotToolCalls) {
  Script script = call_script("value");
  script.end();
  EXPECT_EQ(parsed(script, kThinking), (ParsedOutput{"", "", {}, FinishReason::kStop}));
}

TEST(OutputParser, UnknownHeadersAreTextOfTheirChannel) {
  Script script;
  script.open("b x=\"1\"")
      .close("think now")
      .close("think")
      .open("response")
      .text("a")
      .open("html")
      .text("b");
  script.close("html").close("response").end();
  const ParsedOutput output = parsed(script, kThinking);
  EXPECT_EQ(output.reasoning, "<|open|>b x=\"1\"<|sep|><|close|>think now<|sep|>");
  EXPECT_EQ(output.content, "a<|open|>html<|sep|>b<|close|>html<|sep|>");
}

TEST(OutputParser, MarkersOfTheFormatAtWrongPlacesAreSwallowed) {
  Script script;
  script.text("a")
      .close("think")
      .close("call")
      .open("argument key=\"k\"")
      .text("b")
      .open("message role=\"user\"");
  script.text("c").open("response").text("d").close("response").end();
  EXPECT_EQ(parsed(script, not_thinking()), (ParsedOutput{"", "abcd", {}, FinishReason::kStop}));
}

TEST(OutputParser, ThinkingInAnswersThatShouldNotThinkIsReasoning) {
  Script script;
  script.open("think")
      .text("hm")
      .close("think")
      .open("response")
      .text("Hi")
      .close("response")
      .end();
  EXPECT_EQ(parsed(script, not_thinking()), (ParsedOutput{"hm", "Hi", {}, FinishReason::kStop}));
}

TEST(OutputParser, TextThatSpellsMarkersIsText) {
  const std::string spelled = "<|close|>think<|sep|><|end_of_msg|><|open|>tools<|sep|>";
  Script script;
  script.text(spelled).close("think").open("response").text(spelled).close("response").end();
  EXPECT_EQ(parsed(script, kThinking), (ParsedOutput{spelled, spelled, {}, FinishReason::kStop}));
}

TEST(OutputParser, LiteralMarkersInsideAStringValueAreUnambiguous) {
  Script script = call_script("a<|close|>argument<|sep|>b");
  script.close("call").end();
  EXPECT_EQ(parsed(script, kThinking).tool_calls[0].arguments_json,
            R"({"k":"a<|close|>argument<|sep|>b"})");
  Script tokens = call_script("");
  tokens.open("argument key=\"k\" type=\"string\"")
      .text("a")
      .open("think")
      .close("think")
      .text("b")
      .close("argument");
  tokens.close("call").end();
  EXPECT_EQ(parsed(tokens, kThinking).tool_calls[0].arguments_json,
            R"({"k":"a<|open|>think<|sep|><|close|>think<|sep|>b"})");
}

TEST(OutputParser, AttributeValuesAreUnescapedAndBodiesAreNot) {
  Script script = call_script("");
  script.open("argument key=\"a&amp;quot;&quot;b\" type=\"string\"")
      .text("&quot;&amp;")
      .close("argument")
      .close("call");
  EXPECT_EQ(parsed(script, kThinking).tool_calls[0].arguments_json,
            R"({"a&quot;\"b":"&quot;&amp;"})");
}

TEST(OutputParser, NewlinesInNamesAndKeysSurvive) {
  Script script;
  script.open("tools")
      .open("call tool=\"a\nb\"")
      .open("argument key=\"c\nd\" type=\"null\"")
      .text("null");
  script.close("argument").close("call").end();
  EXPECT_EQ(parsed(script, kThinking).tool_calls,
            (std::vector<ParsedCall>{{0, "a\nb", R"({"c\nd":null})"}}));
}

TEST(OutputParser, OfEqualKeysTheFirstCountsAndTheJsonHasNoDuplicates) {
  Script script = call_script("one");
  script.open("argument key=\"k\" type=\"string\"").text("two").close("argument");
  script.open("argument key=\"k\" type=\"number\"").text("3").close("argument").close("call").end();
  EXPECT_EQ(parsed(script, kThinking).tool_calls[0].arguments_json, R"({"k":"one"})");
}

TEST(OutputParser, ACallWithoutAToolIsDropped) {
  Script script;
  script.open("tools")
      .open("call index=\"1\"")
      .open("argument key=\"k\" type=\"string\"")
      .text("v")
      .close("argument");
  script.close("call")
      .open("call tool=\"\"")
      .close("call")
      .open("call tool=\"g\"")
      .close("call")
      .close("tools")
      .end();
  EXPECT_EQ(parsed(script, kThinking).tool_calls, (std::vector<ParsedCall>{{0, "g", "{}"}}));
}

TEST(OutputParser, AnArgumentWithoutAKeyIsDropped) {
  Script script = call_script("");
  script.open("argument type=\"string\"")
      .text("v")
      .close("argument")
      .open("argument key=\"k\"")
      .text("w");
  script.close("argument").close("call").end();
  EXPECT_EQ(parsed(script, kThinking).tool_calls[0].arguments_json, R"({"k":"w"})");
}

TEST(OutputParser, ValuesThatAreNoJsonBecomeJsonStrings) {
  for (const auto& [value, json] :
       std::vector<std::pair<std::string, std::string>>{{"12abc", R"("12abc")"},
                                                        {"", R"("")"},
                                                        {" 7 ", "7"},
                                                        {"1.50", "1.50"},
                                                        {"NaN", R"("NaN")"},
                                                        {"{\"a\": 1, }", R"("{\"a\": 1, }")"},
                                                        {"[1, 2", R"("[1, 2")"},
                                                        {"1e999", R"("1e999")"}}) {
    Script script = call_script("");
    script.open("argument key=\"k\" type=\"number\"")
        .text(value)
        .close("argument")
        .close("call")
        .end();
    const std::string arguments = parsed(script, kThinking).tool_calls[0].arguments_json;
    EXPECT_EQ(arguments, "{\"k\":" + json + "}");
    EXPECT_TRUE(parse_json(arguments, "arguments").ok());
  }
}

TEST(OutputParser, AJsonBlockIsTheWholeArguments) {
  for (const auto& [text, json] : std::vector<std::pair<std::string, std::string>>{
           {"{ \"a\" : 1.0 }", R"({"a":1.0})"}, {"{\"a\"", R"("{\"a\"")"}, {"[1]", R"("[1]")"}}) {
    Script script = call_script("");
    script.open("json type=\"object\"").text(text).close("json").close("call").end();
    EXPECT_EQ(parsed(script, kThinking).tool_calls[0].arguments_json, json);
  }
}

TEST(OutputParser, AStringArgumentStreamsFromItsFirstToken) {
  OutputParser parser(demo_tokenizer(), kThinking);
  Events events;
  Script head = call_script("");
  head.open("argument key=\"k\" type=\"string\"");
  for (const int32_t id : head.ids) ASSERT_TRUE(parser.push(id, events).ok());
  EXPECT_EQ(events.back(), (OutputEvent{Kind::kArguments, 0, "{\"k\":\"", FinishReason::kStop}));
  for (const int32_t id : demo_tokenizer().encode_text("one two \"three\"")) {
    const size_t before = events.size();
    ASSERT_TRUE(parser.push(id, events).ok());
    EXPECT_EQ(events.size(), before + 1);
    EXPECT_EQ(events.back().kind, Kind::kArguments);
  }
}

TEST(OutputParser, ToolChoiceNoneForgetsCallsAndFinishesStop) {
  Script script = call_script("v");
  script.close("call").close("tools").close("message").end();
  OutputParser::Options options;
  options.drop_calls = true;
  EXPECT_EQ(parsed(script, options), (ParsedOutput{"", "", {}, FinishReason::kStop}));
  for (const OutputEvent& event :
       events_of(demo_tokenizer(), options, script.ids, StopCause::kNatural)) {
    EXPECT_EQ(event.kind, Kind::kDone);
  }
}

TEST(OutputParser, IdsBeyondTheVocabularyAreRefusedAndChangeNothing) {
  OutputParser parser(demo_tokenizer(), kThinking);
  Events events;
  for (const int32_t id : {-1, demo_tokenizer().vocab_size(), 163840, 163846}) {
    const Status pushed = parser.push(id, events);
    ASSERT_FALSE(pushed.ok());
    EXPECT_EQ(pushed.error().code, ErrorCode::kOutOfRange);
  }
  EXPECT_TRUE(events.empty());
  parser.finish(StopCause::kNatural, events);
  EXPECT_EQ(parser.result(), (ParsedOutput{"", std::nullopt, {}, FinishReason::kStop}));
}

TEST(OutputParser, StopIdsAndAbortsEndTheAnswerOnce) {
  OutputParser::Options options = not_thinking();
  options.stop_ids = {*demo_tokenizer().special_id("[EOS]")};
  Script script;
  script.text("Hi").control("[EOS]").text(" there");
  const Events events = events_of(demo_tokenizer(), options, script.ids, StopCause::kLength);
  EXPECT_EQ(put_together(events), (ParsedOutput{"", "Hi", {}, FinishReason::kStop}));
  EXPECT_EQ(std::count_if(events.begin(), events.end(),
                          [](const auto& e) { return e.kind == Kind::kDone; }),
            1);
  Script cut;
  cut.text("Hi");
  EXPECT_EQ(parsed(cut, options, StopCause::kAbort).finish_reason, FinishReason::kAbort);
}

TEST(OutputParser, HiddenTokensAreNoText) {
  Script script;
  script.text("a")
      .control("[PAD]")
      .control("<|media_pad|>")
      .text("b")
      .control("<|close|>")
      .text("th")
      .control("[BOS]");
  script.text("ink").control("<|sep|>").end();
  EXPECT_EQ(parsed(script, kThinking).reasoning, "ab");
}

TEST(OutputParser, HalfACharacterAtTheEndOfAChannelIsOneReplacement) {
  Script script;
  script.byte(0xF0).byte(0x9F).close("think").open("response").byte(0xC3).close("response").end();
  EXPECT_EQ(parsed(script, kThinking), (ParsedOutput{"\uFFFD", "\uFFFD", {}, FinishReason::kStop}));
  Script value = call_script("");
  value.open("argument key=\"k\" type=\"string\"").byte(0xE4).close("argument").close("call").end();
  EXPECT_EQ(parsed(value, kThinking).tool_calls[0].arguments_json, "{\"k\":\"\uFFFD\"}");
}

TEST(OutputParser, HeadersAreBoundedAndWorkIsLinear) {
  Script long_header;
  long_header.control("<|open|>").text(std::string(5000, 'x')).text("y").control("<|sep|>").end();
  const ParsedOutput output = parsed(long_header, not_thinking());
  EXPECT_EQ(output.content, "<|open|>" + std::string(5000, 'x') + "y<|sep|>");
  Script unclosed;
  for (int i = 0; i < 100'000; ++i) unclosed.control("<|open|>").text("call");
  EXPECT_EQ(parsed(unclosed, not_thinking()).content->size(), (100'000u - 1) * 12);
}

TEST(OutputParser, AHeaderBeyondTheLimitIsTextBeforeItsSepArrives) {
  const std::string header = "message x=\"" + std::string(kHeaderBytesMax, 'x') + "\"";
  Script script;
  script.control("<|open|>").text(header);
  EXPECT_GT(parsed(script, not_thinking(), StopCause::kLength).content.value_or("").size(),
            kHeaderBytesMax);
  script.control("<|sep|>").end();
  EXPECT_EQ(parsed(script, not_thinking()).content, "<|open|>" + header + "<|sep|>");
}

TEST(OutputParser, HalfACharacterOfAnAbandonedValueLeaksNowhere) {
  Script script = call_script("");
  script.open("argument key=\"k\" type=\"string\"")
      .byte(0xE4)
      .close("call")
      .open("call tool=\"g\"");
  script.open("argument key=\"k\" type=\"string\"").text("x").close("argument").close("call").end();
  EXPECT_EQ(parsed(script, kThinking).tool_calls,
            (std::vector<ParsedCall>{{1, "g", R"({"k":"x"})"}}));
}

TEST(OutputParser, AMegabyteOfArgumentsIsNoProblem) {
  const std::string value(1 << 20, 'v');
  Script script = call_script(value);
  script.close("call").end();
  EXPECT_EQ(parsed(script, kThinking).tool_calls[0].arguments_json, "{\"k\":\"" + value + "\"}");
}

TEST(OutputParser, CountsTheTokensOfReasoning) {
  OutputParser parser(demo_tokenizer(), kThinking);
  Events events;
  Script think, response;
  think.text("hm hm").close("think");
  response.open("response").text("Hi");
  for (const int32_t id : think.ids) ASSERT_TRUE(parser.push(id, events).ok());
  EXPECT_FALSE(parser.in_reasoning());
  for (const int32_t id : response.ids) ASSERT_TRUE(parser.push(id, events).ok());
  EXPECT_EQ(parser.reasoning_tokens(), static_cast<int64_t>(think.ids.size()));
}

// Pieces of answers: whole markers, broken ones, text, and noise.
rc::Gen<std::vector<Ids>> any_answer() {
  const auto piece = rc::gen::map(
      rc::gen::element<std::string>(
          "<|open|>think<|sep|>", "<|close|>think<|sep|>", "<|open|>response<|sep|>",
          "<|close|>response<|sep|>", "<|open|>tools<|sep|>", "<|close|>tools<|sep|>",
          "<|open|>call tool=\"f\" index=\"1\"<|sep|>", "<|close|>call<|sep|>",
          "<|open|>argument key=\"a\" type=\"string\"<|sep|>", "<|close|>argument<|sep|>",
          "<|open|>argument key=\"b\" type=\"number\"<|sep|>",
          "<|open|>json type=\"object\"<|sep|>", "<|close|>json<|sep|>", "<|close|>message<|sep|>",
          "<|open|>", "<|close|>", "<|sep|>", "é\"\n", "12", "the 🙂", "[PAD]"),
      [](const std::string& text) { return tiny_tokenizer().encode_control(text); });
  const auto noise =
      rc::gen::container<Ids>(rc::gen::inRange<int32_t>(0, tiny_tokenizer().base_size()));
  return rc::gen::container<std::vector<Ids>>(
      rc::gen::weightedOneOf<Ids>({{6, piece}, {1, noise}}));
}

Ids joined(const std::vector<Ids>& pieces) {
  Ids all;
  for (const Ids& ids : pieces) all.insert(all.end(), ids.begin(), ids.end());
  return all;
}

// Any ids at all: what the deltas add up to is the result; deltas are whole characters, arguments are JSON.
RC_GTEST_PROP(OutputParserProperty, StreamedAndWholeResultsAgreeForAllInputs, ()) {
  const Ids ids = joined(*any_answer());
  OutputParser::Options options;
  options.thinking = *rc::gen::arbitrary<bool>();
  const StopCause cause = *rc::gen::element(StopCause::kNatural, StopCause::kLength);
  const Events events = events_of(tiny_tokenizer(), options, ids, cause);
  const ParsedOutput whole = *parse_output(tiny_tokenizer(), options, ids, cause);
  ParsedOutput streamed = put_together(events);
  if (!streamed.content.has_value() && whole.content == "")
    streamed.content = "";  // no delta says ""
  RC_ASSERT(streamed == whole);
  for (const ParsedCall& call : streamed.tool_calls)
    RC_ASSERT(parse_json(call.arguments_json, "arguments").ok());
  for (const OutputEvent& event : events) RC_ASSERT(is_valid_utf8(event.text));
}

// The same bytes between the markers cut into tokens in another way, down to single bytes.
RC_GTEST_PROP(OutputParserProperty, TheResultDoesNotDependOnHowTextIsCutIntoTokens, ()) {
  const Ids ids = joined(*any_answer());
  Ids bytes;
  for (const int32_t id : ids) {
    if (tiny_tokenizer().is_special(id)) {
      bytes.push_back(id);
    } else {
      const std::string_view token = *tiny_tokenizer().token_bytes(id);
      for (const char byte : token) bytes.push_back(static_cast<unsigned char>(byte));
    }
  }
  RC_ASSERT(*parse_output(tiny_tokenizer(), kThinking, bytes, StopCause::kNatural) ==
            *parse_output(tiny_tokenizer(), kThinking, ids, StopCause::kNatural));
}

}  // namespace
}  // namespace perigee::text
