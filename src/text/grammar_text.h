// What    What the text between two control tokens may be, and how far an answer has come in it. A rule is shared and never
//         changes; a cursor is one answer's place in it.
//           any        every ordinary token
//           text       well-formed characters, chars_min to chars_max of them
//           literals   one of a list of byte strings
//           grammar    a grammar that xgrammar compiled
// Owner   text; grammar.h is the way in.
// Threads Rules and the table: any. A cursor: one; copies share the grammar's matcher, so an accept() through one copy moves
//         all of them (fork() gives an independent one).
// Errors  Nothing that xgrammar throws leaves this file: a cursor whose matcher failed allows nothing, and the answer ends.
// Cost    any and text: one copy of a prepared mask, or one pass over the vocabulary near chars_max. literals: one look-up
//         per byte of what may come. grammar: xgrammar's masks, each made when a state is first met.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <xgrammar/xgrammar.h>

#include "text/tokenizer.h"

namespace perigee::text {

// The ordinary tokens of a vocabulary, with what masks need to know about their bytes.
class TokenTable {
 public:
  explicit TokenTable(const Tokenizer& tokenizer);
  TokenTable(const TokenTable&) = delete;

  int32_t size() const { return static_cast<int32_t>(bytes_.size()); }
  std::string_view bytes(int32_t id) const { return bytes_[static_cast<size_t>(id)]; }
  std::optional<int32_t> find(std::string_view bytes) const;
  const xgrammar::TokenizerInfo& info() const { return info_; }

  void add_all(std::span<uint32_t> mask) const { add(all_, mask); }
  // Tokens that keep text well-formed when `missing` bytes of the last character are still to come, and that begin at most
  // `chars` new characters (-1: any number).
  void add_text(int missing, int64_t chars, std::span<uint32_t> mask) const;
  // Whether `id` is one of those; `missing` and `chars` move on if so.
  bool take_text(int32_t id, int& missing, int64_t& chars, int64_t chars_max) const;
  // Tokens that begin `text`. The first `known` lengths are left out.
  void add_beginnings(std::string_view text, size_t known, std::span<uint32_t> mask) const;

 private:
  struct Shape {
    uint16_t leads = 0;  // characters that begin here
    uint8_t head = 0;    // continuation bytes in front of them
    uint8_t tail = 0;    // bytes that the last one lacks
    bool broken = false;
  };
  static Shape shape_of(std::string_view bytes);
  static bool fits(const Shape& shape, int missing);
  static void add(const std::vector<uint32_t>& from, std::span<uint32_t> mask);

  std::vector<std::string> bytes_;
  std::unordered_map<std::string_view, int32_t> by_bytes_;
  size_t longest_ = 0;
  int64_t leads_max_ = 0;
  std::vector<Shape> shapes_;
  std::vector<uint32_t> all_;
  std::vector<uint32_t> well_formed_[4];  // by `missing`
  xgrammar::TokenizerInfo info_;
};

struct TextRule {
  enum class Kind { kAny, kText, kLiterals, kGrammar };
  Kind kind = Kind::kAny;
  int64_t chars_min = 0;
  int64_t chars_max = -1;             // -1: no bound
  std::vector<std::string> literals;  // sorted, each once
  std::optional<xgrammar::CompiledGrammar> grammar;
  mutable std::mutex filling;  // the library may make a mask during a fill, and weighs masks without a lock of its own
};
using TextRulePtr = std::shared_ptr<const TextRule>;

TextRulePtr any_rule();
TextRulePtr text_rule(int64_t chars_min, int64_t chars_max);
TextRulePtr literals_rule(std::vector<std::string> literals);
TextRulePtr grammar_rule(const xgrammar::CompiledGrammar& grammar);

class TextCursor {
 public:
  using Matcher = xgrammar::GrammarMatcher;

  TextCursor(const TokenTable& table, TextRulePtr rule);

  void add_mask(std::span<uint32_t> mask) const;
  bool accept(int32_t id);  // false: not allowed, nothing changed
  bool complete() const;    // the text may end here
  const TextRule& rule() const { return *rule_; }

  // The part that copies share; nullptr unless the rule is a grammar. Each accept() moves it one step.
  const std::shared_ptr<Matcher>& matcher() const { return matcher_; }
  // Puts an own matcher in the place of the shared one, the same for every cursor that shared it.
  void fork(std::map<const Matcher*, std::shared_ptr<Matcher>>& forks);

 private:
  bool accept_literal(std::string_view bytes);

  const TokenTable* table_;
  TextRulePtr rule_;
  size_t at_ = 0;                     // literals: bytes done
  size_t first_ = 0, last_ = 0;       // literals: those that begin so
  int missing_ = 0;                   // text: bytes that the last character lacks
  int64_t chars_ = 0;                 // text
  std::shared_ptr<Matcher> matcher_;  // grammar; nullptr after a failure of the library
};

}  // namespace perigee::text
