// Chats under a constraint: the think channel is free, the response follows its format, calls follow their tools, and the
// parser of the model's output reads exactly what the constraint let through.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "text/grammar.h"
#include "text/grammar_testing.h"
#include "text/output_parser.h"

namespace perigee::text {
namespace {

using testing::allows;
using testing::demo_compiler;
using testing::demo_tokenizer;
using testing::json_of;
using testing::mask_of;
using testing::Sampler;
using testing::SchemaJudge;

constexpr int kAnswers = 30;

constexpr const char* kWeather = R"({"type":"object","properties":{
    "city":{"type":"string","maxLength":12,"minLength":1},
    "unit":{"type":"string","enum":["celsius","fahrenheit","a \"quoted\" & odd one"]},
    "days":{"type":"integer","minimum":1,"maximum":14},
    "code":{"type":"string","pattern":"^[A-Z]{3}$"},
    "where":{"anyOf":[{"type":"object","properties":{"lat":{"type":"number"},"near":{"$ref":"#/$defs/place"}},
      "required":["lat"]},{"type":"null"}]},
    "flags":{"type":"array","items":{"type":"boolean"},"maxItems":3},
    "a&b\"c":{"const":true},
    "mode":{"enum":["fast",2,null]},
    "note":{"type":["string","null"]}},
  "required":["city","days","a&b\"c"],"additionalProperties":false,
  "$defs":{"place":{"type":"object","properties":{"name":{"type":"string"}},"required":["name"]}}})";

std::string tool(const std::string& name, const std::string& parameters, bool strict) {
  return fmt::format(R"({{"type":"function","function":{{"name":"{}","parameters":{},"strict":{}}}}})", name,
                     parameters, strict);
}

ChatRequest chat(const std::string& members) {
  const Json body = json_of(R"({"messages":[{"role":"user","content":"Hello"}],)" + members + "}");
  Result<ChatRequest> request = parse_chat_request(body);
  if (!request.ok()) check_failed(__FILE__, __LINE__, request.error().message);
  return std::move(*request);
}

std::shared_ptr<Constraint> make(const GrammarCompiler& compiler, const ChatRequest& request) {
  Result<std::shared_ptr<Constraint>> made = compiler.for_chat(request);
  if (!made.ok()) check_failed(__FILE__, __LINE__, made.error().message);
  return *made;
}

std::shared_ptr<Constraint> make(const GrammarCompiler& compiler, const ChatRequest& request, const std::string& outputs) {
  const Result<StructuredOutputs> wanted = parse_structured_outputs(json_of(outputs));
  if (!wanted.ok()) check_failed(__FILE__, __LINE__, wanted.error().message);
  Result<std::shared_ptr<Constraint>> made = compiler.for_chat(request, &*wanted);
  if (!made.ok()) check_failed(__FILE__, __LINE__, made.error().message);
  return *made;
}

std::vector<int32_t> tokens(std::string_view text) {
  return demo_tokenizer().encode_control(text);
}

ParsedOutput parse(const std::vector<int32_t>& ids, bool thinking) {
  OutputParser::Options options;
  options.thinking = thinking;
  options.stop_ids = {*demo_tokenizer().special_id("[EOS]")};
  return *parse_output(demo_tokenizer(), options, ids, StopCause::kNatural);
}

const std::string kThinkEnd = "I see <think> and \"json\" {[ here<|close|>think<|sep|>";

TEST(ChatConstraint, NothingToConstrain) {
  const GrammarCompiler compiler = demo_compiler();
  EXPECT_EQ(make(compiler, chat(R"("temperature":1)")), nullptr);
  EXPECT_EQ(make(compiler, chat(R"("tools":[)" + tool("f", kWeather, false) + "]")), nullptr);
  EXPECT_EQ(make(compiler, chat(R"("tool_choice":"none")")), nullptr);
}

TEST(ChatConstraint, ThinkingIsFreeUntilItCloses) {
  const GrammarCompiler compiler = demo_compiler();
  const auto constraint = make(compiler, chat(R"("response_format":{"type":"json_object"})"));
  bool bound = false;
  const int32_t close = *demo_tokenizer().special_id("<|close|>");
  const int32_t end = *demo_tokenizer().special_id("<|end_of_msg|>");
  const int32_t stop = *demo_tokenizer().special_id("[EOS]");
  bool closing = false;
  for (const int32_t id : tokens(kThinkEnd)) {
    const auto mask = mask_of(*constraint, demo_tokenizer(), bound);
    EXPECT_TRUE(bound);
    EXPECT_TRUE(allows(mask, id)) << id;
    EXPECT_FALSE(allows(mask, end));
    for (int32_t other = 0; !closing && other < demo_tokenizer().vocab_size(); ++other) {
      EXPECT_EQ(allows(mask, other), other != end && other != stop) << other;
    }
    closing = closing || id == close;
    constraint->accept(id);
  }
  const auto mask = mask_of(*constraint, demo_tokenizer(), bound);
  EXPECT_TRUE(bound);
  for (int32_t id = 0; id < demo_tokenizer().vocab_size(); ++id) {
    EXPECT_EQ(allows(mask, id), id == *demo_tokenizer().special_id("<|open|>")) << id;
  }
}

// A model that closes the message in its thoughts would answer nothing at all.
TEST(ChatConstraint, AnAnswerThatMustComeCannotEndInTheThoughts) {
  const GrammarCompiler compiler = demo_compiler();
  const int32_t sep = *demo_tokenizer().special_id("<|sep|>");
  const std::string tools = R"(","tools":[)" + tool("weather", kWeather, true) + "]";
  const std::pair<std::string, bool> wishes[] = {{R"("response_format":{"type":"json_object"})", false},
                                                 {R"("tool_choice":"required)" + tools, true},
                                                 {R"("tool_choice":"none)" + tools, false}};
  for (const auto& [wish, may_call] : wishes) {
    const auto start = make(compiler, chat(wish));
    const std::pair<std::string, bool> markers[] = {{"<|close|>think", true},
                                                    {"<|close|>message", false},
                                                    {"<|open|>response", true},
                                                    {"<|open|>tools", may_call},
                                                    {"<|open|>think", false}};
    for (const auto& [marker, works] : markers) {
      const auto constraint = start->clone();
      bool allowed = true;
      bool bound = false;
      std::vector<int32_t> ids = tokens("Well" + marker);
      ids.push_back(sep);
      for (size_t i = 0; i < ids.size() && allowed; ++i) {
        allowed = allows(mask_of(*constraint, demo_tokenizer(), bound), ids[i]);
        if (allowed) constraint->accept(ids[i]);
      }
      EXPECT_EQ(allowed, works) << wish << ": " << marker;
    }
  }
}

TEST(ChatConstraint, AResponseFollowsItsFormatWithAndWithoutThinking) {
  const GrammarCompiler compiler = demo_compiler();
  const Json schema = json_of(kWeather);
  const std::string format =
      fmt::format(R"("response_format":{{"type":"json_schema","json_schema":{{"name":"w","schema":{}}}}})", kWeather);
  for (uint64_t seed = 0; seed < kAnswers; ++seed) {
    for (const bool thinking : {true, false}) {
      ChatRequest request = chat(format);
      request.thinking = thinking;
      const auto constraint = make(compiler, request);
      const auto ids = Sampler(demo_tokenizer(), seed)
                           .answer(*constraint, thinking ? tokens(kThinkEnd) : std::vector<int32_t>{}, 120);
      const ParsedOutput output = parse(ids, thinking);
      const Result<Json> value = parse_json(output.content.value_or(""), "the content");
      ASSERT_TRUE(value.ok()) << "seed " << seed << ": " << value.error().message;
      EXPECT_TRUE(SchemaJudge(schema).fits(*value)) << *output.content;
      EXPECT_TRUE(output.tool_calls.empty());
      EXPECT_EQ(output.finish_reason, FinishReason::kStop);
      EXPECT_EQ(output.reasoning.empty(), !thinking);
    }
  }
}

TEST(ChatConstraint, StructuredOutputsHoldForTheResponseAndToolsForTheCalls) {
  const GrammarCompiler compiler = demo_compiler();
  const std::string tools = R"("tool_choice":"required","tools":[)" + tool("weather", kWeather, true) + "]";
  for (uint64_t seed = 0; seed < kAnswers; ++seed) {
    for (const bool thinking : {true, false}) {
      for (const char* outputs : {R"({"choice":["red","green"]})", R"({"regex":"red|green"})",
                                  R"({"grammar":"root ::= \"red\" | \"green\""})"}) {
        ChatRequest request = chat(seed % 2 == 0 ? R"("temperature":1)" : tools);
        request.thinking = thinking;
        const auto constraint = make(compiler, request, outputs);
        const auto ids = Sampler(demo_tokenizer(), seed)
                             .answer(*constraint, thinking ? tokens(kThinkEnd) : std::vector<int32_t>{}, 200);
        const ParsedOutput output = parse(ids, thinking);
        const std::string content = output.content.value_or("");
        const bool calls = !output.tool_calls.empty();
        EXPECT_TRUE(content == "red" || content == "green" || (content.empty() && calls)) << seed << ": " << content;
        EXPECT_EQ(calls, seed % 2 == 1) << seed;
      }
    }
  }
}

void expect_calls(const ParsedOutput& output, const std::string& name, const Json& schema, uint64_t seed) {
  for (const ParsedCall& call : output.tool_calls) {
    EXPECT_EQ(call.name, name);
    const Result<Json> arguments = parse_json(call.arguments_json, "the arguments");
    ASSERT_TRUE(arguments.ok()) << "seed " << seed << ": " << arguments.error().message;
    EXPECT_TRUE(SchemaJudge(schema).fits(*arguments)) << "seed " << seed << ": " << call.arguments_json;
  }
}

TEST(ChatConstraint, RequiredCallsOneOrMoreOfTheTools) {
  const GrammarCompiler compiler = demo_compiler();
  const Json schema = json_of(kWeather);
  const ChatRequest request = chat(R"("tool_choice":"required","tools":[)" + tool("weather", kWeather, true) + "]");
  size_t most = 0;
  for (uint64_t seed = 0; seed < kAnswers; ++seed) {
    const auto ids = Sampler(demo_tokenizer(), seed).answer(*make(compiler, request), tokens(kThinkEnd), 200);
    const ParsedOutput output = parse(ids, true);
    EXPECT_GE(output.tool_calls.size(), 1u) << *demo_tokenizer().decode(ids);
    EXPECT_EQ(output.finish_reason, FinishReason::kToolCalls);
    expect_calls(output, "weather", schema, seed);
    most = std::max(most, output.tool_calls.size());
  }
  EXPECT_GT(most, 1u);
}

TEST(ChatConstraint, ANamedFunctionIsCalledOnce) {
  const GrammarCompiler compiler = demo_compiler();
  const ChatRequest request = chat(R"("tool_choice":{"type":"function","function":{"name":"weather"}},"tools":[)" +
                                   tool("other", "{}", false) + "," + tool("weather", kWeather, false) + "]");
  for (uint64_t seed = 0; seed < kAnswers; ++seed) {
    const auto ids = Sampler(demo_tokenizer(), seed).answer(*make(compiler, request), tokens(kThinkEnd), 150);
    const ParsedOutput output = parse(ids, true);
    ASSERT_EQ(output.tool_calls.size(), 1u) << *demo_tokenizer().decode(ids);
    expect_calls(output, "weather", json_of(kWeather), seed);
  }
}

TEST(ChatConstraint, AutoWithAStrictToolMayCallOrNot) {
  const GrammarCompiler compiler = demo_compiler();
  const ChatRequest request = chat(R"("tools":[)" + tool("weather", kWeather, true) + "]");
  int calls = 0;
  for (uint64_t seed = 0; seed < kAnswers; ++seed) {
    const auto ids = Sampler(demo_tokenizer(), seed).answer(*make(compiler, request), tokens(kThinkEnd), 100);
    const ParsedOutput output = parse(ids, true);
    expect_calls(output, "weather", json_of(kWeather), seed);
    calls += output.tool_calls.empty() ? 0 : 1;
  }
  EXPECT_GT(calls, 0);
  EXPECT_LT(calls, kAnswers);
}

TEST(ChatConstraint, ToolsOfSystemMessagesCount) {
  const GrammarCompiler compiler = demo_compiler();
  const Json body =
      json_of(R"({"tool_choice":"required","messages":[{"role":"user","content":"Hi"},
      {"role":"system","tools":[)" +
              tool("late", R"({"type":"object","properties":{"q":{"type":"null"}},"required":["q"]})", true) + "]}]}");
  const Result<ChatRequest> request = parse_chat_request(body);
  ASSERT_TRUE(request.ok()) << request.error().message;
  const auto ids = Sampler(demo_tokenizer(), 1).answer(*make(compiler, *request), tokens(kThinkEnd));
  const ParsedOutput output = parse(ids, true);
  ASSERT_GE(output.tool_calls.size(), 1u);
  EXPECT_EQ(output.tool_calls[0].name, "late");
  EXPECT_EQ(json_of(output.tool_calls[0].arguments_json), json_of(R"({"q":null})"));
}

TEST(ChatConstraint, OtherKeysFollowAdditionalProperties) {
  const GrammarCompiler compiler = demo_compiler();
  const char* schema =
      R"({"type":"object","properties":{"ab":{"type":"null"},"abc":{"type":"null"},"é&":{"type":"null"}},
      "additionalProperties":{"type":"integer"}})";
  const Json root = json_of(schema);
  const ChatRequest request = chat(R"("tool_choice":"required","tools":[)" + tool("f", schema, true) + "]");
  size_t others = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const auto ids = Sampler(demo_tokenizer(), seed).answer(*make(compiler, request), tokens(kThinkEnd), 150);
    const ParsedOutput output = parse(ids, true);
    expect_calls(output, "f", root, seed);
    for (const ParsedCall& call : output.tool_calls) others += json_of(call.arguments_json).members().size();
  }
  EXPECT_GT(others, 0u);
}

TEST(ChatConstraint, AToolWithoutParametersMayHaveAnyArguments) {
  const GrammarCompiler compiler = demo_compiler();
  const ChatRequest request = chat(R"("tool_choice":"required","tools":[{"type":"function","function":{"name":"f"}}])");
  for (uint64_t seed = 0; seed < kAnswers; ++seed) {
    const auto ids = Sampler(demo_tokenizer(), seed).answer(*make(compiler, request), tokens(kThinkEnd), 100);
    const ParsedOutput output = parse(ids, true);
    ASSERT_GE(output.tool_calls.size(), 1u);
    for (const ParsedCall& call : output.tool_calls) EXPECT_TRUE(json_of(call.arguments_json).is_object());
  }
}

TEST(ChatConstraint, AFormatAndToolsAreBothHonoured) {
  const GrammarCompiler compiler = demo_compiler();
  for (const char* choice : {"auto", "required"}) {
    for (const bool strict : {true, false}) {
      const ChatRequest request =
          chat(fmt::format(R"("response_format":{{"type":"json_object"}},"tool_choice":"{}","tools":[{}])", choice,
                           tool("weather", kWeather, strict)));
      for (uint64_t seed = 0; seed < kAnswers; ++seed) {
        const auto constraint = make(compiler, request);
        std::vector<int32_t> unbound = tokens(kThinkEnd);
        const auto call = tokens("<|open|>call tool=\"x\" index=\"1\"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>");
        unbound.insert(unbound.end(), call.begin(), call.end());
        const ParsedOutput output = parse(Sampler(demo_tokenizer(), seed).answer(*constraint, unbound, 60), true);
        const bool silent = output.content.value_or("").empty();
        EXPECT_TRUE(silent || json_of(*output.content).is_object());
        EXPECT_TRUE(!silent || !output.tool_calls.empty());
        EXPECT_TRUE(std::string(choice) == "auto" || !output.tool_calls.empty());
      }
    }
  }
}

TEST(ChatConstraint, AModelThatSkipsTheEndOfThinkingIsStillBound) {
  const GrammarCompiler compiler = demo_compiler();
  const ChatRequest request = chat(R"("tool_choice":"required","tools":[)" + tool("weather", kWeather, true) + "]");
  const auto ids = Sampler(demo_tokenizer(), 5).answer(*make(compiler, request), tokens("Hm<|open|>tools<|sep|>"), 100);
  const ParsedOutput output = parse(ids, true);
  EXPECT_GE(output.tool_calls.size(), 1u);
  expect_calls(output, "weather", json_of(kWeather), 5);
}

TEST(ChatConstraint, TheReferenceTextOfACallIsAllowedTokenByToken) {
  const GrammarCompiler compiler = demo_compiler();
  ChatRequest request = chat(R"("tools":[)" + tool("weather", kWeather, true) + "]");
  const auto constraint = make(compiler, request);
  Message said{Role::kAssistant, "", {"On it."}, "Easy.", {}, {}, "", ""};
  said.tool_calls.push_back({"",
                             "weather",
                             json_of(R"({"days":3,"city":"Zürich","where":{"lat":47.5,
      "near":{"name":"lake"}},"a&b\"c":true,"flags":[true,false],"mode":2,"unit":"a \"quoted\" & odd one","note":null})"),
                             {}});
  request.messages.push_back(said);
  std::vector<Segment> segments = render_chat(request);
  const auto ids = *encode_segments(demo_tokenizer(), segments);
  const auto prefix =
      *encode_segments(demo_tokenizer(), render_chat(chat(R"("tools":[)" + tool("weather", kWeather, true) + "]")));
  bool bound = false;
  const auto end = std::find(ids.begin() + static_cast<ptrdiff_t>(prefix.size()), ids.end(),
                             *demo_tokenizer().special_id("<|end_of_msg|>"));
  ASSERT_NE(end, ids.end());
  for (auto id = ids.begin() + static_cast<ptrdiff_t>(prefix.size()); id != end + 1; ++id) {
    const auto mask = mask_of(*constraint, demo_tokenizer(), bound);
    ASSERT_TRUE(!bound || allows(mask, *id))
        << "after "
        << *demo_tokenizer().decode(std::vector<int32_t>(ids.begin() + static_cast<ptrdiff_t>(prefix.size()), id))
        << " not: " << *demo_tokenizer().token_bytes(*id);
    constraint->accept(*id);
  }
}

RC_GTEST_PROP(ChatConstraintProperty, RollbackAndCloneEqualAFreshReplay, ()) {
  static const GrammarCompiler compiler = demo_compiler();
  static const ChatRequest request =
      chat(R"("tool_choice":"required","tools":[)" + tool("weather", kWeather, true) + "]");
  static const std::shared_ptr<Constraint> start = make(compiler, request);
  const auto seed = *rc::gen::arbitrary<uint64_t>();
  Sampler sampler(demo_tokenizer(), seed);
  const std::vector<int32_t> ids = sampler.answer(*start->clone(), tokens("So<|close|>think<|sep|>"), 60);
  std::shared_ptr<Constraint> constraint = start->clone();
  size_t at = 0;
  bool bound = false;
  for (int step = 0; step < 12; ++step) {
    const size_t ahead = std::min<size_t>(sampler.below(40), ids.size() - at);
    for (size_t i = 0; i < ahead; ++i) constraint->accept(ids[at++]);
    const size_t back = sampler.below(std::min<size_t>(at, 30) + 1);
    if (sampler.below(2) == 0) constraint = constraint->clone();
    constraint->rollback(static_cast<int64_t>(back));
    at -= back;
    const auto fresh = start->clone();
    for (size_t i = 0; i < at; ++i) fresh->accept(ids[i]);
    const auto expected = mask_of(*fresh, demo_tokenizer(), bound);
    RC_ASSERT(mask_of(*constraint, demo_tokenizer(), bound) == expected);
  }
}

}  // namespace
}  // namespace perigee::text
