#include "text/json.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <cstdlib>

#include "text/testing.h"
#include "text/utf8.h"

namespace perigee::text {
namespace {

TEST(JsonGolden, PrintsAsPythonPrints) {
  const Json golden = testing::read_golden("json.json");
  ASSERT_GT(golden.find("cases")->items().size(), 200u);
  for (const Json& item : golden.find("cases")->items()) {
    const std::string& text = item.find("text")->as_string();
    const Result<Json> value = parse_json(text, "case");
    ASSERT_TRUE(value.ok()) << text << ": " << value.error().message;
    EXPECT_EQ(print_json(*value), item.find("default")->as_string()) << text;
    EXPECT_EQ(print_json(*value, kJsonCompactSorted), item.find("compact_sorted")->as_string())
        << text;
  }
}

TEST(Json, KeepsNumberLexemesWhenAsked) {
  const JsonStyle style{.item_separator = ",", .key_separator = ":", .number_lexemes = true};
  EXPECT_EQ(print_json(*parse_json("[ 1.50, 1E5, 12345678901234567890123, -7 ]", "t"), style),
            "[1.50,1E5,12345678901234567890123,-7]");
}

TEST(Json, OfEqualKeysTheLastValueCountsAtTheFirstPlace) {
  const Result<Json> value = parse_json(R"({"a": 1, "b": 2, "a": 3, "a": 4})", "t");
  ASSERT_TRUE(value.ok());
  EXPECT_EQ(print_json(*value), R"({"a": 4, "b": 2})");
  EXPECT_EQ(*value->find("a")->as_int64(), 4);
}

TEST(Json, ErrorsNameTheTextTheLineAndTheColumn) {
  const std::vector<std::pair<std::string, std::string>> rows = {
      {"{\"a\": 1,\n \"b\" 2}", "body.json is not valid JSON at line 2, column 6"},
      {"[1, 2", "the text ends too early"},
      {"", "the text ends too early"},
      {"[1] x", "line 1, column 5"},
      {"[1e999]", "1e999 is too large"},
      {"\"\\ud83d\"", "is not valid JSON"},
      {"\"\xFF\"", "is not valid JSON"},
      {"NaN", "is not valid JSON"},
      {"[01]", "is not valid JSON"},
      {"{'a': 1}", "is not valid JSON"},
  };
  for (const auto& [text, part] : rows) {
    const Result<Json> value = parse_json(text, "body.json");
    ASSERT_FALSE(value.ok()) << text;
    EXPECT_NE(value.error().message.find(part), std::string::npos) << value.error().message;
    EXPECT_TRUE(is_valid_utf8(value.error().message));
  }
}

TEST(Json, DepthIsBoundedAndDeepTextIsRefusedWithoutRecursion) {
  const std::string deep(2'000'000, '[');
  const Result<Json> refused = parse_json(deep, "body");
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("nested deeper than 128 levels"), std::string::npos);
  EXPECT_TRUE(parse_json(std::string(128, '[') + std::string(128, ']'), "body").ok());
  EXPECT_FALSE(parse_json(std::string(129, '[') + std::string(129, ']'), "body").ok());
}

TEST(Json, ManySmallValuesAreRefusedBeforeTheyFillTheMemory) {
  std::string many = "[0";
  for (size_t i = 0; i < kJsonValuesMax; ++i) many += ",0";
  const Result<Json> refused = parse_json(many + "]", "body");
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("body holds more than 2097152 values"), std::string::npos);
  // Containers and members count as well; equal keys count each time.
  EXPECT_TRUE(parse_json(R"([{"a":1,"a":2},[]])", "body", kJsonDepthMax, nullptr, 5).ok());
  EXPECT_FALSE(parse_json(R"([{"a":1,"a":2},[]])", "body", kJsonDepthMax, nullptr, 4).ok());
}

TEST(Json, WholeNumbersAreReadOnlyFromIntegers) {
  EXPECT_EQ(*parse_json("-42", "t")->as_int64(), -42);
  EXPECT_FALSE(parse_json("1.0", "t")->as_int64().ok());
  EXPECT_FALSE(parse_json("9223372036854775808", "t")->as_int64().ok());
}

RC_GTEST_PROP(JsonProperty, FloatsReadBackToTheSameBits, ()) {
  const double value = *rc::gen::arbitrary<double>();
  RC_PRE(std::isfinite(value));
  RC_ASSERT(std::strtod(python_float_repr(value).c_str(), nullptr) == value);
}

RC_GTEST_PROP(JsonProperty, StringsSurviveThePrinter, ()) {
  const std::string text = replace_invalid_utf8(*rc::gen::arbitrary<std::string>());
  const Json value = Json::object({{text, Json::array({Json::string(text)})}});
  const Result<Json> again = parse_json(print_json(value), "printed");
  RC_ASSERT(again.ok());
  RC_ASSERT(*again == value);
}

TEST(Json, AMemberWhoseValueCannotBeReadIsNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"a": NaN})", "a"},
      {R"({"a": 1, "b": 1e999})", "b"},
      {R"({"a": {"b": [1, {"c": -Infinity}]}})", "a.b[1].c"},
      {R"({"a": [1, 2, Infinity]})", "a[2]"},
      {R"([NaN])", "[0]"},
      {R"({"a": 1,})", ""},
      {R"({"a": 1 "b": 2})", ""},
      {R"({"a": )", ""},
      {R"(NaN)", ""}};
  for (const auto& [text, member] : cases) {
    std::string field;
    EXPECT_FALSE(parse_json(text, "it", kJsonDepthMax, &field).ok()) << text;
    EXPECT_EQ(field, member) << text;
  }
}

}  // namespace
}  // namespace perigee::text
