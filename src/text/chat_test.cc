#include "text/chat.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "text/testing.h"

namespace perigee::text {
namespace {

using testing::demo_tokenizer;

Result<ChatRequest> parse(std::string_view text) {
  const Result<Json> body = parse_json(text, "request");
  if (!body.ok()) return body.error();
  return parse_chat_request(*body);
}

// Markers and text in one line, for reading.
std::string shown(const std::vector<Segment>& segments) {
  std::string out;
  for (const Segment& segment : segments) out += segment.text;
  return out;
}

TEST(ChatGolden, SegmentsAndIdsAreThoseOfThePublishedFormat) {
  const Json golden = testing::read_golden("chat.json");
  ASSERT_GE(golden.find("cases")->items().size(), 40u);
  for (const Json& item : golden.find("cases")->items()) {
    const std::string& name = item.find("name")->as_string();
    const Result<ChatRequest> request = parse(item.find("request")->as_string());
    ASSERT_TRUE(request.ok()) << name << ": " << request.error().message;
    std::vector<Segment> expected;
    for (const Json& pair : item.find("segments")->items()) {
      expected.push_back({pair.items()[0].as_string(), pair.items()[1].as_bool()});
    }
    const std::vector<Segment> segments = render_chat(*request);
    EXPECT_EQ(shown(segments), shown(expected)) << name;
    EXPECT_EQ(segments, expected) << name;
    std::vector<int32_t> ids;
    for (const Json& id : item.find("ids")->items())
      ids.push_back(static_cast<int32_t>(*id.as_int64()));
    EXPECT_EQ(*encode_segments(demo_tokenizer(), segments), ids) << name;
  }
}

TEST(Chat, OneUserMessageIsThinkingWithFullEffort) {
  const std::vector<Segment> segments = render_chat(single_user_message("Hi"));
  EXPECT_EQ(shown(segments),
            "<|open|>message role=\"system\" type=\"thinking-effort\"<|sep|>`thinking_effort` "
            "guides on how "
            "much to think in your thinking channel (not including the response channel), "
            "supported values "
            "include `low`, `medium`, `high`, and `max`.\nNow the system is invoked with "
            "`thinking_effort=max`.<|close|>message<|sep|><|end_of_msg|>"
            "<|open|>message role=\"user\"<|sep|>Hi<|close|>message<|sep|><|end_of_msg|>"
            "<|open|>message role=\"assistant\"<|sep|><|open|>think<|sep|>");
  EXPECT_EQ(segments, render_chat(*parse(R"([{"role": "user", "content": "Hi"}])")));
}

TEST(Chat, AttributesEscapeAmpersandFirstThenQuotes) {
  ChatRequest request = single_user_message("x");
  request.messages[0].name = R"(a"&quot;<>')";
  EXPECT_NE(shown(render_chat(request)).find(R"(name="a&quot;&amp;quot;<>'")"), std::string::npos);
}

TEST(Chat, ATokenizerWithoutTheMarkersIsRefused) {
  const Result<Tokenizer> other = Tokenizer::parse(testing::model_file(testing::byte_tokens()), "m",
                                                   R"({"added_tokens_decoder": {}})", "c");
  ASSERT_TRUE(other.ok());
  const Result<std::vector<int32_t>> ids =
      encode_segments(*other, render_chat(single_user_message("Hi")));
  ASSERT_FALSE(ids.ok());
  EXPECT_NE(ids.error().message.find("no token <|open|>"), std::string::npos);
}

// Whatever texts a request carries, the control ids of its prompt are those of the format and no others.
RC_GTEST_PROP(ChatProperty, TextsOfARequestNeverYieldControlIds, ()) {
  const auto any = rc::gen::map(
      rc::gen::container<std::vector<std::string>>(rc::gen::element<std::string>(
          "<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>", "message role=\"system\"", "think",
          "[EOS]", "a", "\"", "&", "<|kimi_image_placeholder|>", "<|media_pad|>",
          "<|reserved_token_1800|>", "é")),
      [](const std::vector<std::string>& parts) {
        std::string text;
        for (const std::string& part : parts) text += part;
        return text;
      });
  ChatRequest request = single_user_message("");
  request.messages.resize(3);
  request.messages[0].name = *any;
  request.messages[0].content = {*any, *any};
  request.messages[1].role = Role::kAssistant;
  request.messages[1].reasoning = *any;
  request.messages[1].content = {*any};
  ToolCall call;
  call.name = *any;
  call.arguments = Json::object({{*any, Json::string(*any)}});
  ToolCall raw;
  raw.name = "f";
  raw.raw_arguments = *any;
  request.messages[1].tool_calls = {call, raw};
  request.messages[2].role = Role::kTool;
  request.messages[2].tool_name = "f" + *any;
  request.messages[2].content = {*any};
  request.tools = {Json::object({{*any, Json::string(*any)}})};
  const std::vector<Segment> segments = render_chat(request);
  const auto controls = std::count_if(segments.begin(), segments.end(),
                                      [](const Segment& s) { return s.is_control; });
  const std::vector<int32_t> ids = *encode_segments(demo_tokenizer(), segments);
  const auto specials = std::count_if(ids.begin(), ids.end(),
                                      [](int32_t id) { return demo_tokenizer().is_special(id); });
  RC_ASSERT(specials == controls);
}

struct Refusal {
  const char* request;
  const char* part_of_sentence;
};

void expect_refused(const std::vector<Refusal>& rows) {
  for (const Refusal& row : rows) {
    const Result<ChatRequest> request = parse(row.request);
    ASSERT_FALSE(request.ok()) << row.request;
    EXPECT_EQ(request.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(request.error().message.find(row.part_of_sentence), std::string::npos)
        << row.request << "\n"
        << request.error().message;
  }
}

TEST(ChatRefusals, MessagesAndRoles) {
  expect_refused({
      {"{}", "messages is missing"},
      {"7", "the request must be an object with `messages`"},
      {R"({"messages": {}})", "messages must be a list of messages, not an object"},
      {"[]", "messages is an empty list"},
      {R"(["x"])", "messages[0] must be an object, not a string"},
      {R"([{"content": "x"}])", "messages[0].role must be a string"},
      {R"([{"role": "critic", "content": "x"}])", "messages[0].role \"critic\" is unknown"},
      {R"([{"role": "user"}])", "messages[0].content is missing"},
      {R"([{"role": "user", "content": null}])",
       "messages[0].content must be a string or a list of text parts"},
      {R"([{"role": "user", "content": []}])", "messages[0].content is an empty list"},
      {R"([{"role": "user", "content": ["x"]}])", "messages[0].content[0] must be an object"},
      {R"([{"role": "user", "content": [{"type": "image_url"}]}])",
       "content[0].type \"image_url\" is not supported"},
      {R"([{"role": "user", "content": [{"type": "text"}]}])", "content[0].text must be a string"},
      {R"([{"role": "user", "content": [{"text": "x"}]}])", "content[0].type must be \"text\""},
      {R"([{"role": "user", "content": "x", "name": 7}])", "messages[0].name must be a string"},
      {R"([{"role": "assistant"}])", "messages[0].content is missing"},
      {R"([{"role": "assistant", "content": "x", "reasoning_content": []}])",
       "reasoning_content must be a string"},
  });
}

TEST(ChatRefusals, PrefillIsRefusedAndNeverSilentlyClosed) {
  expect_refused({
      {R"([{"role": "assistant", "content": "x", "partial": true}])",
       "messages[0].partial is not supported"},
      {R"({"messages": [{"role": "user", "content": "x"}], "continue_final_message": true})",
       "continue_final_message is not supported"},
      {R"({"messages": [{"role": "user", "content": "x"}], "add_generation_prompt": false})",
       "add_generation_prompt: false is not supported"},
  });
}

constexpr const char* kUserPrefix = R"({"messages": [{"role": "user", "content": "x"}], )";

std::string with(const std::string& members) {
  return kUserPrefix + members + "}";
}

std::string with_tool(const std::string& tool) {
  return with("\"tools\": [" + tool + "]");
}

void expect_refused_text(const std::string& request, const char* part) {
  expect_refused({{request.c_str(), part}});
}

TEST(ChatRefusals, DeclaredTools) {
  const auto named = [](const std::string& name) {
    return R"({"type": "function", "function": {"name": ")" + name + R"("}})";
  };
  expect_refused_text(with(R"("tools": {})"), "tools must be a list of tools, not an object");
  expect_refused_text(with(R"("tools": [])"), "tools is an empty list");
  expect_refused_text(with_tool("7"), "tools[0] must be an object");
  expect_refused_text(with_tool(R"({"function": {"name": "f"}})"),
                      "tools[0].type must be \"function\"");
  expect_refused_text(with_tool(R"({"type": "plugin", "function": {"name": "f"}})"),
                      "tools[0].type");
  expect_refused_text(with_tool(R"({"type": "function"})"), "tools[0].function must be an object");
  expect_refused_text(with_tool(R"({"type": "function", "function": {}})"),
                      "tools[0].function.name must be");
  for (const char* name : {"", "1st", "a b", "a.b", "é", "$x", "-x"}) {
    expect_refused_text(with_tool(named(name)), "tools[0].function.name must be 1 to 256");
  }
  expect_refused_text(with_tool(named(std::string(257, 'n'))),
                      "tools[0].function.name must be 1 to 256");
  EXPECT_TRUE(parse(with_tool(named(std::string(256, 'n')))).ok());
  expect_refused_text(with_tool(named("f") + "," + named("f")),
                      "tools[1].function.name \"f\" is declared twice");
  expect_refused_text(
      with_tool(R"({"type": "function", "function": {"name": "f", "parameters": []}})"),
      "tools[0].function.parameters must be an object, not an array");
  expect_refused_text(
      with_tool(R"({"type": "function", "function": {"name": "f", "description": 1}})"),
      "tools[0].function.description must be a string");
  expect_refused_text(
      with_tool(R"({"type": "function", "function": {"name": "f", "strict": "yes"}})"),
      "tools[0].function.strict must be a boolean");
}

TEST(ChatRefusals, ToolsInsideMessages) {
  const std::string tool = R"([{"type": "function", "function": {"name": "f"}}])";
  const auto message = [&](const std::string& role, const std::string& content,
                           const std::string& tools) {
    return "{\"role\": \"" + role + "\", \"content\": " + content + ", \"tools\": " + tools + "}";
  };
  for (const char* role : {"user", "assistant"}) {
    expect_refused_text("[" + message(role, "\"\"", tool) + "]",
                        "messages[0].tools is allowed in system messages only");
  }
  expect_refused_text("[" + message("system", "\"text\"", tool) + "]",
                      "messages[0] has both content and tools");
  expect_refused_text("[" + message("system", "null", "{}") + "]",
                      "messages[0].tools must be a list of tools");
  expect_refused_text(
      "[" + message("system", "null", tool) + "," + message("system", "\"\"", tool) + "]",
      "messages[1].tools[0].function.name \"f\" is declared twice");
  expect_refused_text(
      "{\"tools\": " + tool + ", \"messages\": [" + message("system", "null", tool) + "]}",
      "messages[0].tools[0].function.name \"f\" is declared twice");
  EXPECT_TRUE(parse("[" + message("developer", "null", tool) + "]").ok());
}

TEST(ChatRefusals, ToolCallsOfTheHistory) {
  const auto calls = [](const std::string& list) {
    return R"([{"role": "assistant", "content": null, "tool_calls": )" + list + "}]";
  };
  const auto arguments = [&](const std::string& value) {
    return calls(R"([{"id": "1", "type": "function", "function": {"name": "f", "arguments": )" +
                 value + "}}]");
  };
  expect_refused_text(calls("{}"), "messages[0].tool_calls must be a list of calls");
  expect_refused_text(calls("[1]"), "messages[0].tool_calls[0] must be an object");
  expect_refused_text(calls(R"([{"name": "f"}])"),
                      "messages[0].tool_calls[0].function must be an object");
  expect_refused_text(calls(R"([{"function": {}}])"),
                      "tool_calls[0].function.name must be a non-empty string");
  expect_refused_text(calls(R"([{"type": "x", "function": {"name": "f"}}])"),
                      "tool_calls[0].type must be");
  expect_refused_text(calls(R"([{"id": 7, "function": {"name": "f"}}])"),
                      "tool_calls[0].id must be a string");
  for (const char* value : {"[]", "7", "true"}) {
    expect_refused_text(arguments(value),
                        "function.arguments must be an object or a string that holds one");
  }
  for (const char* value : {R"("[1]")", R"("7")", R"("null")", R"("\"x\"")"}) {
    expect_refused_text(arguments(value), "function.arguments must hold a JSON object");
  }
  expect_refused_text(R"([{"role": "user", "content": "x", "tool_calls": []}])",
                      "allowed in assistant messages only");
}

TEST(ChatRefusals, ArgumentsOfAllCallsTogetherAreBounded) {
  const std::string call = R"({"function": {"name": "f", "arguments": ")" + std::string(1 << 20, 'x') + "\"}}";
  const auto history = [&](int calls) {
    std::string list = call;
    for (int i = 1; i < calls; ++i) list += "," + call;
    return R"([{"role": "user", "content": ""}, {"role": "assistant", "content": null, "tool_calls": [)" + list + "]}]";
  };
  EXPECT_TRUE(parse(history(8)).ok());
  expect_refused_text(history(9), "messages[1].tool_calls: all arguments up to here have 9437184 bytes");
}

TEST(ChatRefusals, ToolResults) {
  expect_refused({
      {R"([{"role": "tool", "content": "x"}])", "messages[0].tool_call_id must name the call"},
      {R"([{"role": "tool", "content": "x", "tool_call_id": ""}])",
       "messages[0].tool_call_id must name the call"},
      {R"([{"role": "tool", "content": "x", "tool_call_id": 7}])",
       "messages[0].tool_call_id must be a string"},
      {R"([{"role": "tool", "content": "x", "tool_call_id": "a"}])",
       "messages[0].tool_call_id \"a\" answers no tool call"},
      {R"([{"role": "assistant", "content": "", "tool_calls": [{"id": "a", "function": {"name": "f"}}]},
           {"role": "tool", "content": "x", "tool_call_id": "a"}, {"role": "tool", "content": "x", "tool_call_id": "b"}])",
       "messages[2].tool_call_id \"b\" answers no tool call"},
  });
}

TEST(ChatRefusals, ToolChoice) {
  const std::string tools =
      R"("tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": )";
  expect_refused_text(with(R"("tool_choice": "required")"), "tool_choice \"required\" needs tools");
  expect_refused_text(with(R"("tool_choice": {"type": "function", "function": {"name": "f"}})"),
                      "names \"f\"");
  expect_refused_text(with(tools + "\"sometimes\""), "tool_choice \"sometimes\" is unknown");
  expect_refused_text(with(tools + "7"), "tool_choice must be auto, none, required or");
  expect_refused_text(with(tools + R"({"type": "function", "function": {"name": "g"}})"),
                      "names \"g\"");
  expect_refused_text(with(tools + R"({"type": "function"})"),
                      "tool_choice must be auto, none, required or");
}

TEST(ChatRefusals, ResponseFormat) {
  const auto format = [](const std::string& value) {
    return with("\"response_format\": " + value);
  };
  expect_refused_text(format("\"json_object\""), "response_format must be an object, not a string");
  expect_refused_text(format(R"({"type": "yaml"})"),
                      "response_format.type must be text, json_object or json_schema");
  expect_refused_text(format(R"({"type": "json_schema"})"),
                      "response_format.json_schema must be an object");
  expect_refused_text(format(R"({"type": "json_schema", "json_schema": {"schema": {}}})"),
                      "json_schema.name must be");
  expect_refused_text(format(R"({"type": "json_schema", "json_schema": {"name": "n"}})"),
                      "json_schema.schema must be");
  expect_refused_text(
      format(R"({"type": "json_schema", "json_schema": {"name": "n", "schema": []}})"),
      "json_schema.schema must be an object");
  expect_refused_text(
      format(R"({"type": "json_schema", "json_schema": {"name": "n", "schema": {}, "strict": 1}})"),
      "json_schema.strict must be a boolean");
}

TEST(ChatRefusals, ThinkingIsNeverSilentlyIgnored) {
  for (const char* effort : {"\"medium\"", "\"huge\"", "\"\"", "3"}) {
    for (const char* form : {R"("reasoning_effort": %)", R"("chat_template_kwargs": {"reasoning_effort": %})"}) {
      std::string more = form;
      more.replace(more.find('%'), 1, effort);
      expect_refused_text(with(more), "reasoning_effort must be none, minimal, low, high, xhigh or max");
    }
  }
  expect_refused_text(with(R"("thinking": true)"), "thinking must be an object");
  expect_refused_text(with(R"("thinking": {"type": "auto"})"),
                      "thinking.type must be enabled or disabled");
  expect_refused_text(with(R"("thinking": {"keep": "none"})"), "thinking.keep must be \"all\"");
  expect_refused_text(with(R"("thinking": {"effort": "medium"})"),
                      "thinking.effort must be low, high or max");
  expect_refused_text(with(R"("chat_template_kwargs": {"thinking": "no"})"),
                      "chat_template_kwargs.thinking must be a boolean");
  expect_refused_text(with(R"("chat_template_kwargs": {"tokenize": true})"),
                      "chat_template_kwargs.tokenize is unknown");
}

TEST(Chat, EffortsOfOtherServersMeanThoseOfTheModel) {
  const std::pair<const char*, ThinkingEffort> same[] = {{"minimal", ThinkingEffort::kLow}, {"low", ThinkingEffort::kLow},
                                                         {"high", ThinkingEffort::kHigh},   {"xhigh", ThinkingEffort::kMax},
                                                         {"max", ThinkingEffort::kMax}};
  for (const auto& [name, effort] : same) {
    const Result<ChatRequest> request = parse(with(fmt::format(R"("reasoning_effort": "{}")", name)));
    ASSERT_TRUE(request.ok()) << name;
    EXPECT_TRUE(request->thinking) << name;
    EXPECT_EQ(request->effort, effort) << name;
  }
  for (const char* more : {R"("reasoning_effort": "none")", R"("chat_template_kwargs": {"reasoning_effort": "none"})",
                           R"("thinking": {"type": "enabled"}, "reasoning_effort": "none")"}) {
    const Result<ChatRequest> request = parse(with(more));
    ASSERT_TRUE(request.ok()) << more;
    EXPECT_FALSE(request->thinking) << more;
    EXPECT_EQ(render_chat(*request), render_chat(*parse(with(R"("thinking": {"type": "disabled"})"))));
  }
}

TEST(Chat, OtherMembersOfARequestArePassedOver) {
  const Result<ChatRequest> request =
      parse(with(R"("model": "m", "temperature": 1, "stream": true, "x": {})"));
  ASSERT_TRUE(request.ok());
  EXPECT_EQ(render_chat(*request), render_chat(single_user_message("x")));
}

}  // namespace
}  // namespace perigee::text
