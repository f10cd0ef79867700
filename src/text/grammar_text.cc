#include "text/grammar_text.h"

#include <algorithm>
#include <exception>

#include "base/check.h"

namespace perigee::text {

namespace {

std::vector<std::string> ordinary_tokens(const Tokenizer& tokenizer) {
  std::vector<std::string> tokens;
  tokens.reserve(static_cast<size_t>(tokenizer.base_size()));
  for (int32_t id = 0; id < tokenizer.base_size(); ++id) tokens.emplace_back(*tokenizer.token_bytes(id));
  return tokens;
}

void set_bit(std::span<uint32_t> mask, int32_t id) {
  const auto at = static_cast<size_t>(id);
  if (at / 32 < mask.size()) mask[at / 32] |= 1u << (at % 32);
}

bool is_continuation(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) == 0x80;
}

// Bytes of the character that begins with `byte`; 0 if none does.
int character_bytes(char byte) {
  const auto value = static_cast<unsigned char>(byte);
  if (value < 0x80) return 1;
  if (value < 0xC2 || value > 0xF4) return 0;
  return value < 0xE0 ? 2 : value < 0xF0 ? 3 : 4;
}

}  // namespace

TokenTable::TokenTable(const Tokenizer& tokenizer)
    : bytes_(ordinary_tokens(tokenizer)),
      info_(bytes_, xgrammar::VocabType::RAW, std::nullopt, std::vector<int32_t>{}) {
  const size_t words = (bytes_.size() + 31) / 32;
  all_.assign(words, 0);
  for (auto& mask : well_formed_) mask.assign(words, 0);
  for (int32_t id = 0; id < size(); ++id) {
    by_bytes_.emplace(bytes(id), id);
    longest_ = std::max(longest_, bytes(id).size());
    shapes_.push_back(shape_of(bytes(id)));
    leads_max_ = std::max<int64_t>(leads_max_, shapes_.back().leads);
    set_bit(all_, id);
    for (int missing = 0; missing < 4; ++missing) {
      if (fits(shapes_.back(), missing)) set_bit(well_formed_[missing], id);
    }
  }
}

std::optional<int32_t> TokenTable::find(std::string_view bytes) const {
  const auto found = by_bytes_.find(bytes);
  return found == by_bytes_.end() ? std::nullopt : std::optional<int32_t>(found->second);
}

TokenTable::Shape TokenTable::shape_of(std::string_view bytes) {
  Shape shape;
  size_t at = 0;
  while (at < bytes.size() && is_continuation(bytes[at])) ++at;
  shape.broken = at > 3;
  shape.head = static_cast<uint8_t>(std::min<size_t>(at, 3));
  while (at < bytes.size() && !shape.broken) {
    const int wanted = character_bytes(bytes[at]);
    int have = 1;
    while (have < wanted && at + static_cast<size_t>(have) < bytes.size() &&
           is_continuation(bytes[at + static_cast<size_t>(have)])) {
      ++have;
    }
    at += static_cast<size_t>(have);
    shape.broken = wanted == 0 || (have < wanted && at < bytes.size());
    shape.tail = static_cast<uint8_t>(std::max(wanted - have, 0));
    ++shape.leads;
  }
  return shape;
}

bool TokenTable::fits(const Shape& shape, int missing) {
  if (shape.broken) return false;
  return shape.leads == 0 ? shape.head <= missing : shape.head == missing;
}

void TokenTable::add(const std::vector<uint32_t>& from, std::span<uint32_t> mask) {
  const size_t words = std::min(from.size(), mask.size());
  for (size_t word = 0; word < words; ++word) mask[word] |= from[word];
}

void TokenTable::add_text(int missing, int64_t chars, std::span<uint32_t> mask) const {
  if (chars < 0 || chars >= leads_max_) {
    add(well_formed_[missing], mask);
    return;
  }
  for (int32_t id = 0; id < size(); ++id) {
    const Shape& shape = shapes_[static_cast<size_t>(id)];
    if (shape.leads <= chars && fits(shape, missing)) set_bit(mask, id);
  }
}

bool TokenTable::take_text(int32_t id, int& missing, int64_t& chars, int64_t chars_max) const {
  const Shape& shape = shapes_[static_cast<size_t>(id)];
  if (!fits(shape, missing) || (chars_max >= 0 && chars + shape.leads > chars_max)) return false;
  missing = shape.leads == 0 ? missing - shape.head : shape.tail;
  chars += shape.leads;
  return true;
}

void TokenTable::add_beginnings(std::string_view text, size_t known, std::span<uint32_t> mask) const {
  for (size_t length = known + 1; length <= std::min(text.size(), longest_); ++length) {
    const auto found = by_bytes_.find(text.substr(0, length));
    if (found != by_bytes_.end()) set_bit(mask, found->second);
  }
}

TextRulePtr any_rule() {
  static const auto rule = std::make_shared<const TextRule>();
  return rule;
}

TextRulePtr text_rule(int64_t chars_min, int64_t chars_max) {
  auto rule = std::make_shared<TextRule>();
  rule->kind = TextRule::Kind::kText;
  rule->chars_min = chars_min;
  rule->chars_max = chars_max;
  return rule;
}

TextRulePtr literals_rule(std::vector<std::string> literals) {
  auto rule = std::make_shared<TextRule>();
  rule->kind = TextRule::Kind::kLiterals;
  std::sort(literals.begin(), literals.end());
  literals.erase(std::unique(literals.begin(), literals.end()), literals.end());
  rule->literals = std::move(literals);
  return rule;
}

TextRulePtr grammar_rule(const xgrammar::CompiledGrammar& grammar) {
  auto rule = std::make_shared<TextRule>();
  rule->kind = TextRule::Kind::kGrammar;
  rule->grammar = grammar;
  return rule;
}

TextCursor::TextCursor(const TokenTable& table, TextRulePtr rule) : table_(&table), rule_(std::move(rule)) {
  last_ = rule_->literals.size();
  if (rule_->kind != TextRule::Kind::kGrammar) return;
  try {
    matcher_ = std::make_shared<Matcher>(*rule_->grammar);
  } catch (const std::exception&) {
    matcher_ = nullptr;
  }
}

void TextCursor::add_mask(std::span<uint32_t> mask) const {
  switch (rule_->kind) {
    case TextRule::Kind::kAny:
      table_->add_all(mask);
      return;
    case TextRule::Kind::kText:
      table_->add_text(missing_, rule_->chars_max < 0 ? -1 : rule_->chars_max - chars_, mask);
      return;
    case TextRule::Kind::kLiterals: {
      std::string_view before;
      for (size_t i = first_; i < last_; ++i) {
        const std::string_view rest = std::string_view(rule_->literals[i]).substr(at_);
        const auto differ = std::mismatch(rest.begin(), rest.end(), before.begin(), before.end());
        table_->add_beginnings(rest, static_cast<size_t>(differ.first - rest.begin()), mask);
        before = rest;
      }
      return;
    }
    case TextRule::Kind::kGrammar:
      break;
  }
  if (matcher_ == nullptr) return;
  std::vector<int32_t> words((static_cast<size_t>(table_->size()) + 31) / 32, 0);
  int64_t shape = static_cast<int64_t>(words.size());
  DLTensor tensor{words.data(), DLDevice{kDLCPU, 0}, 1, xgrammar::GetBitmaskDLType(), &shape, nullptr, 0};
  const std::lock_guard lock(rule_->filling);
  try {
    if (!matcher_->FillNextTokenBitmask(&tensor)) return table_->add_all(mask);
  } catch (const std::exception&) {
    return;
  }
  for (size_t word = 0; word < std::min(words.size(), mask.size()); ++word) {
    mask[word] |= static_cast<uint32_t>(words[word]);
  }
}

bool TextCursor::accept(int32_t id) {
  if (id < 0 || id >= table_->size()) return false;
  switch (rule_->kind) {
    case TextRule::Kind::kAny:
      return true;
    case TextRule::Kind::kText:
      return table_->take_text(id, missing_, chars_, rule_->chars_max);
    case TextRule::Kind::kLiterals:
      return accept_literal(table_->bytes(id));
    case TextRule::Kind::kGrammar:
      break;
  }
  if (matcher_ == nullptr) return false;
  try {
    return matcher_->AcceptToken(id);
  } catch (const std::exception&) {
    return false;
  }
}

bool TextCursor::accept_literal(std::string_view bytes) {
  const auto part = [&](const std::string& literal) { return std::string_view(literal).substr(at_, bytes.size()); };
  const auto from = rule_->literals.begin() + static_cast<ptrdiff_t>(first_);
  const auto to = rule_->literals.begin() + static_cast<ptrdiff_t>(last_);
  const auto low = std::partition_point(from, to, [&](const std::string& text) { return part(text) < bytes; });
  const auto high = std::partition_point(low, to, [&](const std::string& text) { return part(text) == bytes; });
  if (low == high) return false;
  first_ = static_cast<size_t>(low - rule_->literals.begin());
  last_ = static_cast<size_t>(high - rule_->literals.begin());
  at_ += bytes.size();
  return true;
}

bool TextCursor::complete() const {
  switch (rule_->kind) {
    case TextRule::Kind::kAny:
      return true;
    case TextRule::Kind::kText:
      return missing_ == 0 && chars_ >= rule_->chars_min;
    case TextRule::Kind::kLiterals:
      return first_ < last_ && rule_->literals[first_].size() == at_;
    case TextRule::Kind::kGrammar:
      return matcher_ == nullptr || matcher_->IsCompleted();
  }
  return false;
}

void TextCursor::fork(std::map<const Matcher*, std::shared_ptr<Matcher>>& forks) {
  if (matcher_ == nullptr) return;
  std::shared_ptr<Matcher>& fork = forks[matcher_.get()];
  if (fork == nullptr) fork = std::make_shared<Matcher>(matcher_->Fork());
  matcher_ = fork;
}

}  // namespace perigee::text
