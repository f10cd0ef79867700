// What    Turns JSON schemas, regular expressions and EBNF grammars into text rules (grammar_text.h), and keeps those it made
//         last. The sources come from clients, so everything is bounded before the library sees it.
//         Texts are UTF-8, but for surrogates and overlong forms spelled byte by byte, which the library lets through.
// Owner   text; grammar.h is the way in.
// Threads Any; one source is compiled at a time.
// Errors  invalid_argument with one sentence that begins with the field's name.
// Cost    A schema of usual size compiles in under a millisecond: masks are made when a state is first met.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/result.h"
#include "text/grammar_text.h"
#include "text/json.h"

namespace perigee::text {

inline constexpr size_t kRegexBytesMax = 8 * 1024;
inline constexpr size_t kEbnfBytesMax = 64 * 1024;
inline constexpr int64_t kRegexAtomsMax = 100'000;  // after repetitions are written out
inline constexpr int kRegexNestingMax = 64;
inline constexpr int64_t kRegexCopiesCounted = 1'000'000'000'000'000;  // kRegexAtomsMax cubed, so no sum runs over

// Refuses what is too long, too deep, not UTF-8, or would be too large written out. Adds to `copies`, for each repetition {n},
// the parts of what is repeated times n squared, up to kRegexCopiesCounted in all.
Status check_regex(std::string_view regex, const std::string& field, int64_t* copies = nullptr);

class RuleCompiler {
 public:
  // Keeps at most `cache_bytes_max` bytes of rules, and as much again of masks that rules share.
  RuleCompiler(std::shared_ptr<const TokenTable> table, int64_t cache_bytes_max);

  // JSON on one line with the separators of `style`; the schema has been checked (grammar_schema.h).
  Result<TextRulePtr> json(const Json& schema, const JsonStyle& style, const std::string& field);
  Result<TextRulePtr> regex(const std::string& regex, const std::string& field);
  Result<TextRulePtr> ebnf(const std::string& grammar, const std::string& field);

  const TokenTable& table() const { return *table_; }

  struct Stats {
    int64_t entries = 0;
    int64_t bytes = 0;
    int64_t hits = 0;
    int64_t misses = 0;
  };
  Stats stats() const;

 private:
  enum class Language : char { kJsonCompact, kJsonSpaced, kRegex, kEbnf };
  struct Entry {
    std::string key;
    TextRulePtr rule;
    int64_t bytes = 0;
  };

  Result<TextRulePtr> get(Language language, const std::string& source, const std::string& field);
  Result<TextRulePtr> compile(Language language, const std::string& source, const std::string& field);
  TextRulePtr look_up(const std::string& key);
  void keep(std::string key, TextRulePtr rule);
  static int64_t bytes_of(const Entry& entry);

  std::shared_ptr<const TokenTable> table_;
  int64_t cache_bytes_max_;
  std::mutex compiling_;
  xgrammar::GrammarCompiler compiler_;

  mutable std::mutex cache_;  // guards what follows
  std::list<Entry> entries_;  // the latest used first
  std::unordered_map<std::string_view, std::list<Entry>::iterator> by_key_;
  Stats stats_;
};

}  // namespace perigee::text
