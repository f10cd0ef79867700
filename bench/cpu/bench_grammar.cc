// What a constraint costs: making a compiler, compiling a schema, and one mask per token along an answer, on the demo model's
// vocabulary and on a made-up one of Kimi K3's size.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/rng.h"
#include "text/grammar.h"
#include "text/testing.h"

namespace {

using perigee::text::Constraint;
using perigee::text::GrammarCompiler;
using perigee::text::Tokenizer;
using Clock = std::chrono::steady_clock;

constexpr std::string_view kRequest = R"({"json":{"type":"object","properties":{"name":{"type":"string"},
    "age":{"type":"integer","minimum":0,"maximum":150},"mail":{"type":"string","pattern":"^[a-z.]+@[a-z.]+$"},
    "tags":{"type":"array","items":{"type":"string"}},"score":{"type":"number"},
    "next":{"anyOf":[{"$ref":"#"},{"type":"null"}]}},"required":["name","age","mail","tags","score","next"]}})";
constexpr std::string_view kPerson =
    R"({"name":"A person with \"quotes\" and 你好 in the name","age":42,"mail":"a.b@example.org",)"
    R"("tags":["one","two words","three"],"score":-12.5e3,"next":)";

double us_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// All bytes, then made-up words, each with and without a space in front.
Tokenizer made_up_tokenizer(int base) {
  std::vector<std::string> tokens = perigee::text::testing::byte_tokens();
  std::unordered_set<std::string> known(tokens.begin(), tokens.end());
  for (uint64_t i = 0; static_cast<int>(tokens.size()) < base; ++i) {
    static constexpr std::string_view kLetters = "etaoinshrdlucmfwypvbgkjqxz_{}[]\",:0123456789";
    uint64_t bits = perigee::random_bits(1, i);
    std::string word = bits % 2 == 0 ? " " : "";
    const uint64_t letters = 2 + bits / 2 % 7;
    for (uint64_t k = 0; k < letters; ++k) {
      bits = perigee::random_bits(bits, k);
      word += kLetters[bits % (bits / 64 % 4 == 0 ? kLetters.size() : 26)];
    }
    if (known.insert(word).second) tokens.push_back(word);
  }
  return *Tokenizer::parse(perigee::text::testing::model_file(tokens), "made-up.model",
                           perigee::text::testing::config_file(base), "made-up.json");
}

std::vector<int32_t> byte_ids(const Tokenizer& tokenizer) {
  std::vector<int32_t> ids(256, -1);
  for (int32_t id = 0; id < tokenizer.base_size(); ++id) {
    const std::string_view bytes = *tokenizer.token_bytes(id);
    if (bytes.size() == 1) ids[static_cast<unsigned char>(bytes[0])] = id;
  }
  return ids;
}

void measure_answer(const Tokenizer& tokenizer, Constraint& constraint, std::string_view name) {
  const std::vector<int32_t> ids = byte_ids(tokenizer);
  const std::string text = std::string(kPerson) + std::string(kPerson) + "null}}";
  std::vector<uint32_t> mask((static_cast<size_t>(tokenizer.vocab_size()) + 31) / 32);
  std::vector<double> fills, accepts;
  for (const char c : text) {
    auto start = Clock::now();
    constraint.fill_mask(mask);
    fills.push_back(us_since(start));
    start = Clock::now();
    constraint.accept(ids[static_cast<unsigned char>(c)]);
    accepts.push_back(us_since(start));
  }
  std::sort(fills.begin(), fills.end());
  std::sort(accepts.begin(), accepts.end());
  fmt::print("  {:<22} mask {:.1f} us median, {:.1f} us 99th of 100, {:.1f} us at most; accept {:.1f} us median\n", name,
             fills[fills.size() / 2], fills[fills.size() * 99 / 100], fills.back(), accepts[accepts.size() / 2]);
}

void measure(const Tokenizer& tokenizer, std::string_view name) {
  fmt::print("{}: {} tokens\n", name, tokenizer.vocab_size());
  const auto wanted = *perigee::text::parse_structured_outputs(*perigee::text::parse_json(kRequest, "the request"));
  for (const bool warm : {false, true}) {
    auto start = Clock::now();
    const GrammarCompiler compiler(tokenizer, {});
    fmt::print("  compiler {:.1f} ms", us_since(start) / 1000);
    if (warm) {
      start = Clock::now();
      compiler.warm_up();
      fmt::print(", warm-up {:.1f} ms", us_since(start) / 1000);
    }
    start = Clock::now();
    const auto constraint = *compiler.for_completion(wanted);
    fmt::print(", schema {:.2f} ms\n", us_since(start) / 1000);
    measure_answer(tokenizer, *constraint, warm ? "first after a warm-up" : "first answer");
    measure_answer(tokenizer, **compiler.for_completion(wanted), "second answer");
  }
}

}  // namespace

int main() {
  measure(perigee::text::testing::demo_tokenizer(), "demo vocabulary");
  measure(made_up_tokenizer(163840 - Tokenizer::kSpecialTokens), "made-up vocabulary");
  return 0;
}
