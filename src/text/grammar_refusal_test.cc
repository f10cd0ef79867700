// Hostile and mistaken constraints: each is refused in bounded time with one sentence that names its field.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "text/grammar.h"
#include "text/grammar_rules.h"
#include "text/grammar_testing.h"

namespace perigee::text {
namespace {

using testing::demo_compiler;
using testing::demo_tokenizer;
using ::testing::HasSubstr;
using testing::json_of;

constexpr auto kTimeMax = std::chrono::seconds(5);  // on a busy machine; the caps are set for far less

std::string repeat(std::string_view text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

std::string json_text(std::string_view text) {
  std::string out;
  append_json_escaped(text, out);
  return "\"" + out + "\"";
}

// The sentence of a refusal, or "" if there was none. One sentence: no line breaks, no trailing full stop or space.
std::string refusal(const Json& outputs) {
  static const GrammarCompiler compiler = demo_compiler();
  const auto start = std::chrono::steady_clock::now();
  const Result<StructuredOutputs> wanted = parse_structured_outputs(outputs);
  std::string sentence = wanted.ok() ? "" : wanted.error().message;
  if (wanted.ok()) {
    const auto made = compiler.for_completion(*wanted);
    sentence = made.ok() ? "" : made.error().message;
    EXPECT_TRUE(made.ok() || made.error().code == ErrorCode::kInvalidArgument);
    if (made.ok()) {  // what is accepted can be asked for its first mask
      bool bound = false;
      testing::mask_of(**made, demo_tokenizer(), bound);
    }
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, kTimeMax);
  EXPECT_EQ(sentence.find('\n'), std::string::npos) << sentence;
  EXPECT_LT(sentence.size(), 1000u);
  EXPECT_TRUE(sentence.empty() || sentence.starts_with("structured_outputs")) << sentence;
  return sentence;
}

std::string schema_refusal(const std::string& schema) {
  return refusal(json_of(R"({"json":)" + schema + "}"));
}
std::string regex_refusal(std::string_view regex) {
  return refusal(Json::object({{"regex", Json::string(std::string(regex))}}));
}
std::string grammar_refusal(std::string_view grammar) {
  return refusal(Json::object({{"grammar", Json::string(std::string(grammar))}}));
}

TEST(Refusal, ShapesOfTheField) {
  EXPECT_THAT(refusal(json_of("[]")), HasSubstr("structured_outputs must be an object"));
  EXPECT_THAT(refusal(json_of("{}")), HasSubstr("must have one of"));
  EXPECT_THAT(refusal(json_of(R"({"regex":"a","choice":["b"]})")), HasSubstr("has both regex and choice"));
  EXPECT_THAT(refusal(json_of(R"({"json_object":3})")), HasSubstr("json_object must be true"));
  EXPECT_THAT(refusal(json_of(R"({"regex":3})")), HasSubstr("structured_outputs.regex must be a non-empty string"));
  EXPECT_THAT(refusal(json_of(R"({"choice":[]})")), HasSubstr("structured_outputs.choice"));
  EXPECT_THAT(refusal(json_of(R"({"choice":["a",2]})")), HasSubstr("structured_outputs.choice[1]"));
  EXPECT_THAT(refusal(json_of(R"({"choice":["a",""]})")), HasSubstr("structured_outputs.choice[1]"));
  EXPECT_THAT(refusal(Json::object({{"choice", Json::array({Json::string(std::string(1 << 20, 'a'))})}})),
              HasSubstr("bytes"));
  EXPECT_THAT(refusal(json_of(R"({"json":"{not json"})")), HasSubstr("structured_outputs.json"));
  EXPECT_EQ(refusal(json_of(R"({"json":"{\"type\":\"null\"}"})")), "");
}

TEST(Refusal, SchemasWithWrongTypes) {
  const std::pair<const char*, const char*> cases[] = {
      {"7", "structured_outputs.json must be a schema"},
      {R"({"type":7})", "structured_outputs.json.type must be"},
      {R"({"type":"text"})", "structured_outputs.json.type must be"},
      {R"({"type":[]})", "structured_outputs.json.type must be"},
      {R"({"properties":[]})", "structured_outputs.json.properties must be an object"},
      {R"({"properties":{"a":3}})", "structured_outputs.json.properties.a must be a schema"},
      {R"({"items":3})", "structured_outputs.json.items must be a schema"},
      {R"({"enum":[]})", "structured_outputs.json.enum must be a non-empty list"},
      {R"({"anyOf":[]})", "structured_outputs.json.anyOf must be a non-empty list"},
      {R"({"anyOf":[{},{"enum":3}]})", "structured_outputs.json.anyOf[1].enum"},
      {R"({"required":"a"})", "structured_outputs.json.required must be a list"},
      {R"({"required":[1]})", "structured_outputs.json.required must be a list"},
      {R"({"pattern":3})", "structured_outputs.json.pattern must be a string"},
      {R"({"type":"string","pattern":"(a"})", "structured_outputs.json cannot be followed"},
      {R"({"type":"string","pattern":"(?=a)b"})", "structured_outputs.json.pattern looks ahead"},
      {R"({"minLength":-1})", "structured_outputs.json.minLength must be a whole number"},
      {R"({"minItems":1.5})", "structured_outputs.json.minItems must be a whole number"},
      {R"({"maxLength":1e9})", "structured_outputs.json.maxLength must be a whole number"},
      {R"({"maxItems":99999999999999999999})", "structured_outputs.json.maxItems must be a whole number"},
      {R"({"maxProperties":1000000})", "structured_outputs.json.maxProperties must be a whole number"},
      {R"({"minimum":"3"})", "structured_outputs.json.minimum must be a number"},
      {R"({"type":"integer","minimum":5,"maximum":4})", "structured_outputs.json cannot be followed"},
      {R"({"$ref":3})", "structured_outputs.json.$ref must be a string"},
      {R"({"$ref":"http://example.com/schema"})", "names nothing in the schema"},
      {R"({"$ref":"#/$defs/none"})", "names nothing in the schema"},
      {R"({"properties":{"a":{"$ref":"#/definitions/none"}}})", "structured_outputs.json.properties.a.$ref"},
      {R"({"$ref":"#"})", "leads back to itself"},
      {R"({"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}})", "leads back to itself"},
  };
  for (const auto& [schema, sentence] : cases) EXPECT_THAT(schema_refusal(schema), HasSubstr(sentence)) << schema;
}

TEST(Refusal, SchemasThatAreTooLarge) {
  const auto nested = [](int depth) {
    return repeat(R"({"type":"object","properties":{"a":)", depth) + "{}" + repeat("}}", depth);
  };
  EXPECT_EQ(schema_refusal(nested(50)), "");
  EXPECT_THAT(schema_refusal(R"({"items":)" + repeat(R"({"items":)", 80) + "{}" + repeat("}", 81)),
              HasSubstr("nests deeper"));
  EXPECT_THAT(schema_refusal(R"({"description":)" + json_text(std::string(300'000, 'x')) + "}"),
              HasSubstr("bytes; at most"));
  std::string values = "0";
  for (int i = 1; i < 2000; ++i) values += "," + std::to_string(i);
  EXPECT_THAT(schema_refusal(R"({"enum":[)" + values + "]}"), HasSubstr("values; at most"));
  std::string members = R"("a":{})";
  for (int i = 0; i < 2000; ++i) members += fmt::format(R"(,"p{}":{{}})", i);
  EXPECT_THAT(schema_refusal(R"({"properties":{)" + members + "}}"), HasSubstr("members; at most"));
  EXPECT_THAT(schema_refusal(R"({"anyOf":[{})" + repeat(",{}", 20'000) + "]}"), HasSubstr("more than 10000 schemas"));
}

// What stays within the caps must be cheap, whatever it is.
TEST(Refusal, TheLargestThatAreAllowedAreQuick) {
  std::string values = "\"value 0\"";
  for (int i = 1; i < 1000; ++i) values += fmt::format(R"(,"value number {}")", i);
  EXPECT_EQ(schema_refusal(R"({"enum":[)" + values + "]}"), "");
  std::string members = R"("a":{})";
  for (int i = 0; i < 900; ++i) members += fmt::format(R"(,"property{}":{{"type":"string","maxLength":1000000}})", i);
  EXPECT_EQ(schema_refusal(R"({"type":"object","properties":{)" + members + "}}"), "");
  std::string fewer = R"("a":{})";
  for (int i = 0; i < 90; ++i) fewer += fmt::format(R"(,"property{}":{{"type":"string"}})", i);
  EXPECT_EQ(
      schema_refusal(R"({"type":"object","properties":{)" + fewer + R"(},"minProperties":40,"maxProperties":80})"), "");
  EXPECT_EQ(schema_refusal(R"({"type":"array","items":{"type":"array","items":{"type":"string","minLength":900000},
      "minItems":1000000},"minItems":900000,"maxItems":1000000})"),
            "");
  // Each definition uses the next one twice: 2^40 paths.
  std::string defs = R"("d40":{"type":"null"})";
  for (int i = 0; i < 40; ++i) {
    defs += fmt::format(
        R"(,"d{}":{{"anyOf":[{{"$ref":"#/$defs/d{}"}},{{"type":"array","items":{{"$ref":"#/$defs/d{}"}}}}]}})", i,
        i + 1, i + 1);
  }
  schema_refusal(R"({"$ref":"#/$defs/d0","$defs":{)" + defs + "}}");
}

// The library builds a pattern within JSON by copying what it has for each repetition: a{16000} would take minutes, and so
// would a thousand short ones.
TEST(Refusal, PatternsOfASchemaThatRepeatTooMuch) {
  const auto with_pattern = [](const std::string& pattern) { return R"({"type":"string","pattern":")" + pattern + "\"}"; };
  EXPECT_EQ(schema_refusal(with_pattern("^[a-z]{0,1000}$")), "");
  EXPECT_EQ(schema_refusal(with_pattern("^((a{10}){10}){10}$")), "");
  for (const char* pattern : {"^a{1500}$", "^a{16000}$", "a{0,100000}", "a{16000,}", "^(ab){1200}$", "(a{1000}b){3}c{1000}"}) {
    EXPECT_THAT(schema_refusal(with_pattern(pattern)), HasSubstr("structured_outputs.json.pattern repeats too much")) << pattern;
  }
  std::string members = R"("a":{})", keys = R"("a":{})";
  for (int i = 0; i < 400; ++i) {
    members += fmt::format(R"(,"p{}":{{"type":"string","pattern":"^a{{{}}}$"}})", i, 100 + i);
    keys += fmt::format(R"(,"^a{{{}}}$":{{}})", 100 + i);
  }
  EXPECT_THAT(schema_refusal(R"({"properties":{)" + members + "}}"), HasSubstr("repeats too much, with the patterns before it"));
  EXPECT_THAT(schema_refusal(R"({"patternProperties":{)" + keys + "}}"), HasSubstr("patternProperties (a key) repeats too much"));
  EXPECT_THAT(schema_refusal(R"j({"patternProperties":{"(?=a)":{}}})j"), HasSubstr("looks ahead"));
}

TEST(Refusal, PatternsOfAllToolsCountTogether) {
  const GrammarCompiler compiler = demo_compiler();
  std::string tools;
  for (int i = 0; i < 40; ++i) {
    tools += fmt::format(R"({}{{"type":"function","function":{{"name":"f{}","strict":true,"parameters":{{"type":"object",
        "properties":{{"o":{{"type":"object","properties":{{"s":{{"type":"string","pattern":"^a{{{}}}$"}}}}}}}}}}}}}})",
                         i > 0 ? "," : "", i, 500 + i);
  }
  const auto request = parse_chat_request(json_of(R"({"messages":[{"role":"user","content":"x"}],"tools":[)" + tools + "]}"));
  ASSERT_TRUE(request.ok()) << request.error().message;
  const auto made = compiler.for_chat(*request);
  ASSERT_FALSE(made.ok());
  EXPECT_THAT(made.error().message, HasSubstr("repeats too much"));
}

TEST(Refusal, RegularExpressions) {
  EXPECT_THAT(regex_refusal("(a"), HasSubstr("structured_outputs.regex cannot be followed"));
  EXPECT_THAT(regex_refusal("[a"), HasSubstr("structured_outputs.regex cannot be followed"));
  EXPECT_THAT(regex_refusal("a**"), HasSubstr("structured_outputs.regex"));
  EXPECT_THAT(regex_refusal("(?<=a)b"), HasSubstr("structured_outputs.regex looks ahead or behind with (?<=,"));
  EXPECT_THAT(regex_refusal("(a)\\1"), HasSubstr("structured_outputs.regex cannot be followed"));
  EXPECT_THAT(regex_refusal("\xFF\xFE"), HasSubstr("must be UTF-8"));
  EXPECT_THAT(regex_refusal(std::string_view("a\0b", 3)), HasSubstr("null"));
  EXPECT_THAT(regex_refusal(std::string(10'000, 'a')), HasSubstr("bytes; at most"));
  EXPECT_THAT(regex_refusal(repeat("(", 500) + "a" + repeat(")", 500)), HasSubstr("nests groups"));
  EXPECT_THAT(regex_refusal("((a{1000}){1000}){1000}"), HasSubstr("repeats too much"));
  EXPECT_THAT(regex_refusal("a{99999999999999999999}"), HasSubstr("repeats too much"));
  EXPECT_THAT(regex_refusal("(((((x{0,20}){0,20}){0,20}){0,20}){0,20}){0,20}"), HasSubstr("repeats too much"));
  // Backtracking engines take for ever with these; they are allowed, and quick.
  for (const char* regex : {"(a*)*b", "(a|a)*(a|aa)+", "(a+)+(b+)+c", "(a|b)*a(a|b){40}", "(.*,){30}x",
                            "((a|b)*c?){50}", "(a?){300}a{300}", "[\\s\\S]{0,50000}"}) {
    EXPECT_EQ(regex_refusal(regex), "") << regex;
  }
}

TEST(Refusal, Grammars) {
  EXPECT_THAT(grammar_refusal("root ::= nothing"), HasSubstr("structured_outputs.grammar cannot be followed"));
  EXPECT_THAT(grammar_refusal("start ::= \"a\""), HasSubstr("structured_outputs.grammar cannot be followed"));
  EXPECT_THAT(grammar_refusal("root ::= \"a"), HasSubstr("structured_outputs.grammar cannot be followed"));
  EXPECT_THAT(grammar_refusal("root ::= root"), HasSubstr("allows no text at all"));
  EXPECT_THAT(grammar_refusal("root ::= Token(999999999)"), HasSubstr("structured_outputs.grammar"));
  EXPECT_THAT(grammar_refusal("\xC3"), HasSubstr("must be UTF-8"));
  EXPECT_THAT(grammar_refusal(std::string(100'000, 'a')), HasSubstr("bytes; at most"));
  EXPECT_THAT(grammar_refusal("root ::= " + repeat("(", 30'000) + "\"a\"" + repeat(")", 30'000)), HasSubstr("grammar"));
  EXPECT_EQ(grammar_refusal("root ::= root \"a\" | \"b\" root | \"c\""), "");
  EXPECT_EQ(grammar_refusal("root ::= (\"a\" | \"a\" root){1,50}"), "");
}

TEST(Refusal, RepetitionsWithinRepetitionsInAGrammar) {
  grammar_refusal("root ::= (((\"a\"{1,1000}){1,1000}){1,1000}){1,1000}");
  grammar_refusal("root ::= ((([a-z]* \"b\"?){0,500} \"c\"?){0,500} \"d\"?){0,500}");
  grammar_refusal("root ::= \"a\"{999999999,1000000000}");
  std::string chain = "root ::= r0 r0\n";
  for (int i = 0; i < 40; ++i) chain += fmt::format("r{} ::= r{} r{} | \"x\"\n", i, i + 1, i + 1);
  grammar_refusal(chain + "r40 ::= \"a\" | \"\"");
}

TEST(Refusal, AnAmbiguousGrammarStaysAffordable) {
  const GrammarCompiler compiler = demo_compiler();
  for (const char* grammar : {"root ::= root root | \"a\"", "root ::= \"\" | \"a\" root \"a\" | root root | \"a\""}) {
    const auto made = compiler.for_completion(*parse_structured_outputs(
        Json::object({{"grammar", Json::string(grammar)}})));
    ASSERT_TRUE(made.ok()) << made.error().message;
    const auto start = std::chrono::steady_clock::now();
    bool bound = false;
    for (int i = 0; i < 100; ++i) {
      testing::mask_of(**made, demo_tokenizer(), bound);
      (*made)->accept(demo_tokenizer().encode_text("a").at(0));
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start, kTimeMax);
  }
}

std::string tool_refusal(const std::string& parameters, bool strict) {
  static const GrammarCompiler compiler = demo_compiler();
  const Result<ChatRequest> request = parse_chat_request(json_of(fmt::format(
      R"({{"messages":[{{"role":"user","content":"Hi"}}],"tool_choice":"required","tools":[{{"type":"function",
      "function":{{"name":"f","strict":{},"parameters":{}}}}}]}})",
      strict, parameters)));
  if (!request.ok()) return request.error().message;
  const auto made = compiler.for_chat(*request);
  return made.ok() ? "" : made.error().message;
}

TEST(Refusal, OnlyStrictToolsMustBeFollowed) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"type":"array"})", "tools[0].function.parameters.type must be \"object\""},
      {R"({"anyOf":[{"type":"object"}]})", "tools[0].function.parameters.anyOf cannot be followed"},
      {R"({"type":"object","required":["x"],"properties":{}})", "names \"x\", which is not in properties"},
      {R"({"type":"object","properties":{"a":{"$ref":"#/$defs/x"}}})",
       "tools[0].function.parameters.properties.a.$ref"},
      {R"({"type":"object","properties":{"a":{"type":"string","pattern":"("}}})",
       "tools[0].function.parameters.properties.a.pattern cannot be followed"},
      {R"({"type":"object","properties":{"":{}}})", "tools[0].function.parameters.properties."},
      {R"({"type":"object","properties":{"a":false},"required":["a"]})", "is required and allows no value"},
      {R"({"type":"object","properties":{"a":{"minLength":3,"maxLength":2,"type":"string"}}})",
       "minLength is over maxLength"},
  };
  for (const auto& [parameters, sentence] : cases) {
    EXPECT_THAT(tool_refusal(parameters, true), HasSubstr(sentence)) << parameters;
    EXPECT_EQ(tool_refusal(parameters, false), "") << parameters;
  }
}

TEST(Refusal, AResponseFormatNamesItsField) {
  const GrammarCompiler compiler = demo_compiler();
  ChatRequest request = single_user_message("Hi");
  request.response_format = ResponseFormat::kJsonSchema;
  request.response_schema = json_of(R"({"type":"object","properties":{"a":{"type":"nothing"}}})");
  const auto made = compiler.for_chat(request);
  ASSERT_FALSE(made.ok());
  EXPECT_THAT(made.error().message, HasSubstr("response_format.json_schema.schema.properties.a.type must be"));
}

TEST(RegexCheck, CountsWhatRepetitionsWriteOut) {
  EXPECT_TRUE(check_regex("a{100000}", "f").ok());
  EXPECT_FALSE(check_regex("a{100001}", "f").ok());
  EXPECT_TRUE(check_regex("(ab){300}{100}", "f").ok());
  EXPECT_FALSE(check_regex("(ab){300}{200}", "f").ok());
  EXPECT_TRUE(check_regex("[{1000000}]\\{9000000}{x}{,}", "f").ok());
}

}  // namespace
}  // namespace perigee::text
