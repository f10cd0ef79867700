// Plain completions under a constraint: random answers are always valid, masks and accept() agree, drafts can be taken back.
#include "text/grammar.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <thread>

#include "text/grammar_testing.h"

namespace perigee::text {
namespace {

using testing::allows;
using testing::demo_compiler;
using testing::demo_tokenizer;
using testing::json_of;
using testing::mask_of;
using testing::Sampler;
using testing::SchemaJudge;

constexpr int kAnswers = 25;  // per schema

std::shared_ptr<Constraint> make(const GrammarCompiler& compiler, const std::string& outputs) {
  const Result<StructuredOutputs> wanted = parse_structured_outputs(json_of(outputs));
  if (!wanted.ok()) check_failed(__FILE__, __LINE__, wanted.error().message);
  Result<std::shared_ptr<Constraint>> made = compiler.for_completion(*wanted);
  if (!made.ok()) check_failed(__FILE__, __LINE__, made.error().message);
  return *made;
}

std::string text_of(std::vector<int32_t> ids) {
  ids.pop_back();  // the end id
  return *demo_tokenizer().decode(ids);
}

int32_t byte_id(char c) {
  for (int32_t id = 0;; ++id) {
    if (*demo_tokenizer().token_bytes(id) == std::string_view(&c, 1)) return id;
  }
}

constexpr const char* kSchemas[] = {
    R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer","minimum":0,"maximum":150},
        "tags":{"type":"array","items":{"type":"string"},"maxItems":3}},"required":["name","age"],
        "additionalProperties":false})",
    R"({"anyOf":[{"type":"integer"},{"type":"null"},{"type":"object","properties":{"x":{"type":"boolean"}},
        "required":["x"]}]})",
    R"({"$ref":"#/$defs/node","$defs":{"node":{"type":"object","properties":{"value":{"type":"number"},
        "next":{"anyOf":[{"$ref":"#/$defs/node"},{"type":"null"}]}},"required":["value","next"]}}})",
    R"({"type":"object","properties":{"self":{"$ref":"#"},"n":{"type":"integer"}},"required":["n"]})",
    R"({"type":"object","properties":{"a":{"$ref":"#/properties/b"},"b":{"enum":["x","y\"z",3,null]}},
        "required":["a","b"]})",
    R"({"type":"string"})",
    R"({})",
    R"({"enum":["red","green",1,true,null,{"k":[1,2]}]})",
    R"({"const":{"fixed":"value","n":-1.5}})",
    R"({"type":"integer","minimum":-12,"maximum":345})",
    R"({"type":"integer","exclusiveMinimum":7,"exclusiveMaximum":9})",
    R"({"type":"number","minimum":0.25,"maximum":10})",
    R"({"type":"string","pattern":"^[A-Z]{2}-\\d{3}$"})",
    R"({"type":"string","pattern":"^(cat|dog)s?$"})",
    R"({"type":"string","pattern":"^[^x]+$"})",
    R"({"type":"string","minLength":2,"maxLength":5})",
    R"({"type":"array","items":{"type":"object","properties":{"k":{"type":["string","null"]}},"required":["k"]},
        "minItems":2,"maxItems":4})",
    R"({"type":"object","additionalProperties":{"type":"integer"},"maxProperties":3})",
    R"({"type":"object","properties":{"a":{"type":"object","properties":{"b":{"type":"object","properties":{"c":
        {"type":"array","items":{"type":"array","items":{"type":"boolean"}}}},"required":["c"]}},"required":["b"]}},
        "required":["a"]})",
    R"({"type":"object","properties":{"kind":{"oneOf":[{"const":"circle"},{"const":"square"}]},
        "size":{"type":["number","null"]},"café":{"type":"string","maxLength":3}},"required":["kind"]})",
};

class SchemaAnswers : public ::testing::TestWithParam<const char*> {};

TEST_P(SchemaAnswers, AreValidOnOneLine) {
  const Json schema = json_of(GetParam());
  const GrammarCompiler compiler = demo_compiler();
  const SchemaJudge judge(schema);
  for (uint64_t seed = 0; seed < kAnswers; ++seed) {
    const auto constraint = make(compiler, std::string(R"({"json":)") + GetParam() + "}");
    const std::string text = text_of(Sampler(demo_tokenizer(), seed).answer(*constraint));
    const Result<Json> value = parse_json(text, "the answer");
    ASSERT_TRUE(value.ok()) << "seed " << seed << ": " << value.error().message << "\n" << text;
    EXPECT_TRUE(judge.fits(*value)) << "seed " << seed << ": " << text;
    EXPECT_EQ(text.find_first_of("\n\r\t"), std::string::npos) << text;
  }
}
INSTANTIATE_TEST_SUITE_P(Schemas, SchemaAnswers, ::testing::ValuesIn(kSchemas));

TEST(Completion, AnyObject) {
  const GrammarCompiler compiler = demo_compiler();
  for (uint64_t seed = 0; seed < kAnswers; ++seed) {
    const auto constraint = make(compiler, R"({"json_object":true})");
    const Result<Json> value = parse_json(text_of(Sampler(demo_tokenizer(), seed).answer(*constraint)), "the answer");
    ASSERT_TRUE(value.ok()) << value.error().message;
    EXPECT_TRUE(value->is_object());
  }
}

TEST(Completion, RegexChoiceAndGrammar) {
  const GrammarCompiler compiler = demo_compiler();
  for (uint64_t seed = 0; seed < kAnswers; ++seed) {
    Sampler sampler(demo_tokenizer(), seed);
    const std::string number = text_of(sampler.answer(*make(compiler, R"({"regex":"[+-]?\\d{1,3}(\\.\\d+)?"})")));
    EXPECT_TRUE(std::regex_match(number, std::regex("[+-]?\\d{1,3}(\\.\\d+)?"))) << number;
    const std::string choice = text_of(sampler.answer(*make(compiler, R"({"choice":["yes","no","not sure","né"]})")));
    EXPECT_TRUE(choice == "yes" || choice == "no" || choice == "not sure" || choice == "né") << choice;
    const std::string sum = text_of(
        sampler.answer(*make(compiler, R"({"grammar":"root ::= num (\"+\" num)*\nnum ::= [0-9] | [1-9] num"})")));
    EXPECT_TRUE(std::regex_match(sum, std::regex("\\d+(\\+\\d+)*"))) << sum;
  }
}

// Whether the text may come byte by byte and the answer end after it.
bool takes(const GrammarCompiler& compiler, const std::string& outputs, std::string_view text) {
  const auto constraint = make(compiler, outputs);
  bool bound = false;
  for (const char c : text) {
    if (!allows(mask_of(*constraint, demo_tokenizer(), bound), byte_id(c))) return false;
    constraint->accept(byte_id(c));
  }
  return allows(mask_of(*constraint, demo_tokenizer(), bound), *demo_tokenizer().special_id("[EOS]"));
}

TEST(Completion, APatternIsSearchedForUnlessItHasAnchors) {
  const GrammarCompiler compiler = demo_compiler();
  const auto pattern = [&](std::string regex, std::string_view text) {
    const Json schema = Json::object({{"type", Json::string("string")}, {"pattern", Json::string(std::move(regex))}});
    return takes(compiler, print_json(Json::object({{"json", schema}})), text);
  };
  EXPECT_TRUE(pattern("b[0-9]c", R"("b1c")"));
  EXPECT_TRUE(pattern("b[0-9]c", R"("a b1c!")"));
  EXPECT_FALSE(pattern("b[0-9]c", R"("a b1")"));
  EXPECT_TRUE(pattern("^a|b$", R"("a!")"));
  EXPECT_TRUE(pattern("^a|b$", R"("!b")"));
  EXPECT_FALSE(pattern("^a|b$", R"("!a")"));
  EXPECT_FALSE(pattern("^(a|b)$", R"("ab")"));
  EXPECT_TRUE(pattern(R"(^[|]\|x\$)", R"("||x$ and more")"));
  EXPECT_TRUE(pattern("^é+$", R"("éé")"));
  EXPECT_FALSE(pattern("^[^é]+$", R"("é")"));
  EXPECT_FALSE(pattern("^.+$", R"("a"b")"));
}

TEST(Completion, AChoiceCanBeSpelledByteByByteAndThenEnds) {
  const GrammarCompiler compiler = demo_compiler();
  for (const std::string choice : {"yes", "no", "not sure", "né"}) {
    const auto constraint = make(compiler, R"({"choice":["yes","no","not sure","né"]})");
    for (const char c : choice) constraint->accept(byte_id(c));
    bool bound = false;
    const auto mask = mask_of(*constraint, demo_tokenizer(), bound);
    EXPECT_TRUE(bound);
    EXPECT_TRUE(allows(mask, *demo_tokenizer().special_id("<|end_of_msg|>"))) << choice;
    EXPECT_TRUE(allows(mask, *demo_tokenizer().special_id("[EOS]"))) << choice;
    EXPECT_FALSE(allows(mask, byte_id('!')));
  }
}

TEST(Completion, AMaskLargerOrSmallerThanTheVocabularyIsFilledAsFarAsItGoes) {
  const GrammarCompiler compiler = demo_compiler();
  const auto constraint = make(compiler, R"({"regex":"[a-z]+"})");
  bool bound = false;
  const auto whole = mask_of(*constraint, demo_tokenizer(), bound);
  std::vector<uint32_t> large(whole.size() + 7, ~0u);
  std::vector<uint32_t> small(5, ~0u);
  constraint->fill_mask(large);
  constraint->fill_mask(small);
  EXPECT_TRUE(std::equal(whole.begin(), whole.end(), large.begin()));
  EXPECT_TRUE(std::equal(small.begin(), small.end(), whole.begin()));
  EXPECT_TRUE(std::all_of(large.begin() + static_cast<ptrdiff_t>(whole.size()), large.end(),
                          [](uint32_t w) { return w == 0; }));
}

// Whatever mixture of accepting, taking back and cloning led here, the mask is that of a fresh replay of what remains.
RC_GTEST_PROP(CompletionProperty, RollbackAndCloneEqualAFreshReplay, ()) {
  static const GrammarCompiler compiler = demo_compiler();
  const std::string outputs = *rc::gen::element<std::string>(
      std::string(R"({"json":)") + kSchemas[0] + "}", std::string(R"({"json":)") + kSchemas[2] + "}",
      R"({"choice":["abc","abd","xyz"]})", R"({"regex":"(ab|a)*c{2,5}"})", R"({"json_object":true})");
  const auto seed = *rc::gen::arbitrary<uint64_t>();
  std::mt19937_64 random(seed);
  std::shared_ptr<Constraint> constraint = make(compiler, outputs);
  std::vector<std::unique_ptr<Constraint>> older;  // clones that stay behind must not be moved by their originals
  std::vector<std::vector<uint32_t>> older_masks;
  std::vector<int32_t> ids;
  bool bound = false;
  for (int step = 0; step < 40; ++step) {
    const auto mask = mask_of(*constraint, demo_tokenizer(), bound);
    std::vector<int32_t> allowed;
    for (int32_t id = 0; id < demo_tokenizer().vocab_size(); ++id) {
      if (allows(mask, id)) allowed.push_back(id);
    }
    RC_ASSERT(!allowed.empty());
    const uint64_t action = random() % 10;
    if (action < 6) {
      ids.push_back(allowed[random() % allowed.size()]);
      constraint->accept(ids.back());
    } else if (action < 8) {
      const size_t back = random() % (ids.size() + 1);
      constraint->rollback(static_cast<int64_t>(back));
      ids.resize(ids.size() - back);
    } else {
      std::unique_ptr<Constraint> copy = constraint->clone();
      if (action == 8) {
        older.push_back(std::move(copy));
        older_masks.push_back(mask);
      } else {
        constraint = std::move(copy);
      }
    }
    const auto fresh = make(compiler, outputs);
    for (const int32_t id : ids) fresh->accept(id);
    RC_ASSERT(mask_of(*fresh, demo_tokenizer(), bound) == mask_of(*constraint, demo_tokenizer(), bound));
  }
  for (size_t i = 0; i < older.size(); ++i) {
    RC_ASSERT(mask_of(*older[i], demo_tokenizer(), bound) == older_masks[i]);
  }
}

TEST(Cache, KeepsTheLatestWithinItsBytes) {
  const GrammarCompiler compiler(demo_tokenizer(), {{*demo_tokenizer().special_id("[EOS]")}, 64 << 10});
  for (int i = 0; i < 100; ++i) {
    make(compiler, fmt::format(R"({{"json":{{"type":"object","properties":{{"key{}":{{"type":"string"}}}}}}}})", i));
    EXPECT_LE(compiler.cache_stats().bytes, 64 << 10);
  }
  EXPECT_GT(compiler.cache_stats().entries, 1);
  EXPECT_LT(compiler.cache_stats().entries, 100);
  const int64_t hits = compiler.cache_stats().hits;
  make(compiler, R"({"json":{"type":"object","properties":{"key99":{"type":"string"}}}})");
  EXPECT_EQ(compiler.cache_stats().hits, hits + 1);
}

TEST(Cache, ManyThreadsShareOneCompiler) {
  const GrammarCompiler compiler(demo_tokenizer(), {{*demo_tokenizer().special_id("[EOS]")}, 64 << 10});
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t seed = 0; seed < 10; ++seed) {
        const char* schema = kSchemas[(t + seed) % 4];
        const auto constraint = make(compiler, std::string(R"({"json":)") + schema + "}");
        const std::string text = text_of(Sampler(demo_tokenizer(), seed).answer(*constraint));
        const Result<Json> value = parse_json(text, "the answer");
        const Json root = json_of(schema);
        EXPECT_TRUE(value.ok() && SchemaJudge(root).fits(*value)) << text;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace perigee::text
