#include "text/grammar_rules.h"

#include <algorithm>
#include <charconv>
#include <exception>

#include "text/utf8.h"

namespace perigee::text {

namespace {

constexpr size_t kReasonBytesMax = 200;

// The library's message as the tail of a sentence: one line, no full stop, of bounded length.
std::string reason(const std::exception& error) {
  std::string text = replace_invalid_utf8(std::string_view(error.what()).substr(0, kReasonBytesMax));
  std::replace(text.begin(), text.end(), '\n', ' ');
  while (!text.empty() && (text.back() == ' ' || text.back() == '.')) text.pop_back();
  return text;
}

// The upper bound of the repetition `{m}`, `{m,}` or `{m,n}` that begins at `at`, and where it ends; 0 if it is none.
int64_t repetition_at(std::string_view regex, size_t at, size_t& end) {
  end = regex.find('}', at);
  if (end == std::string_view::npos) return 0;
  int64_t bound = 0;
  const std::string_view inside = regex.substr(at + 1, end - at - 1);
  for (size_t from = 0; from <= inside.size();) {
    const size_t to = std::min(inside.find(',', from), inside.size());
    int64_t number = 0;
    const auto read = std::from_chars(inside.data() + from, inside.data() + to, number);
    if (read.ec == std::errc::result_out_of_range) number = kRegexAtomsMax + 1;
    if (read.ec == std::errc::invalid_argument && to > from) return 0;
    bound = std::max(bound, std::min(number, kRegexAtomsMax + 1));
    from = to + 1;
  }
  return std::max<int64_t>(bound, 1);
}

// The library's grammar of a schema, with exponents of at most two digits: JSON knows no bound, but what is beyond a double
// is of no use to its readers, ours among them.
xgrammar::Grammar json_grammar(const std::string& schema, const char* item, const char* key) {
  static constexpr std::string_view kExponent = "[eE] basic_number_4 basic_number_digits{1, ";
  static constexpr std::string_view kUnbounded = "-1}";
  const xgrammar::Grammar grammar = xgrammar::Grammar::FromJSONSchema(
      schema, false, std::nullopt, std::make_pair(std::string(item), std::string(key)));
  std::string text = grammar.ToString();
  const size_t at = text.find(kExponent);
  if (at == std::string::npos || text.compare(at + kExponent.size(), kUnbounded.size(), kUnbounded) != 0)
    return grammar;
  text.replace(at + kExponent.size(), kUnbounded.size(), "2}");
  return xgrammar::Grammar::FromEBNF(text);
}

size_t class_end(std::string_view regex, size_t at) {
  for (++at; at < regex.size() && regex[at] != ']'; ++at) {
    if (regex[at] == '\\') ++at;
  }
  return at;
}

}  // namespace

Status check_regex(std::string_view regex, const std::string& field, int64_t* copies) {
  if (regex.size() > kRegexBytesMax) {
    return invalid_argument("{} has {} bytes; at most {} are allowed", field, regex.size(), kRegexBytesMax);
  }
  if (!is_valid_utf8(regex) || regex.find('\0') != std::string_view::npos) {
    return invalid_argument("{} must be UTF-8 without null characters", field);
  }
  for (const std::string_view looks : {"(?=", "(?!", "(?<=", "(?<!"}) {
    if (regex.find(looks) != std::string_view::npos) {
      return invalid_argument("{} looks ahead or behind with {}, which cannot be followed", field, looks);
    }
  }
  std::vector<int64_t> sizes{0};  // of each open group
  int64_t last = 0;               // of the latest atom
  for (size_t at = 0; at < regex.size(); ++at) {
    size_t end = 0;
    const char c = regex[at];
    if (c == '(') {
      sizes.push_back(0);
      last = 0;
      if (sizes.size() > static_cast<size_t>(kRegexNestingMax)) {
        return invalid_argument("{} nests groups deeper than {}", field, kRegexNestingMax);
      }
    } else if (c == ')' && sizes.size() > 1) {
      last = sizes.back();
      sizes.pop_back();
      sizes.back() += last;
    } else if (const int64_t times = c == '{' ? repetition_at(regex, at, end) : 0; times > 0) {
      if (copies != nullptr) *copies = std::min(*copies + last * times * times, kRegexCopiesCounted);
      sizes.back() += last * (times - 1);
      last *= times;
      at = end;
    } else if (c != '*' && c != '+' && c != '?' && c != '|') {
      if (c == '\\') ++at;
      if (c == '[') at = class_end(regex, at);
      last = 1;
      sizes.back() += 1;
    }
    if (sizes.back() > kRegexAtomsMax) {
      return invalid_argument("{} repeats too much: written out it has more than {} parts", field, kRegexAtomsMax);
    }
  }
  return {};
}

RuleCompiler::RuleCompiler(std::shared_ptr<const TokenTable> table, int64_t cache_bytes_max)
    : table_(std::move(table)),
      cache_bytes_max_(cache_bytes_max),
      // The library gives a third of its bytes to the masks that rules share, and keeps nothing else.
      compiler_(table_->info(), 1, true, 3 * cache_bytes_max, true) {}

Result<TextRulePtr> RuleCompiler::json(const Json& schema, const JsonStyle& style, const std::string& field) {
  const bool compact = style.item_separator == kJsonCompact.item_separator;
  const JsonStyle print{",", ":", false, true};
  return get(compact ? Language::kJsonCompact : Language::kJsonSpaced, print_json(schema, print), field);
}

Result<TextRulePtr> RuleCompiler::regex(const std::string& regex, const std::string& field) {
  if (const Status checked = check_regex(regex, field); !checked.ok()) return checked.error();
  return get(Language::kRegex, regex, field);
}

Result<TextRulePtr> RuleCompiler::ebnf(const std::string& grammar, const std::string& field) {
  if (grammar.size() > kEbnfBytesMax) {
    return invalid_argument("{} has {} bytes; at most {} are allowed", field, grammar.size(), kEbnfBytesMax);
  }
  if (!is_valid_utf8(grammar) || grammar.find('\0') != std::string::npos) {
    return invalid_argument("{} must be UTF-8 without null characters", field);
  }
  return get(Language::kEbnf, grammar, field);
}

Result<TextRulePtr> RuleCompiler::get(Language language, const std::string& source, const std::string& field) {
  std::string key = static_cast<char>(language) + source;
  if (TextRulePtr known = look_up(key)) return known;
  const std::lock_guard lock(compiling_);
  Result<TextRulePtr> made = compile(language, source, field);
  if (made.ok()) keep(std::move(key), *made);
  return made;
}

Result<TextRulePtr> RuleCompiler::compile(Language language, const std::string& source, const std::string& field) {
  try {
    const xgrammar::CompiledGrammar grammar =
        compiler_.CompileGrammar(language == Language::kJsonCompact  ? json_grammar(source, ",", ":")
                                 : language == Language::kJsonSpaced ? json_grammar(source, ", ", ": ")
                                 : language == Language::kRegex      ? xgrammar::Grammar::FromRegex(source)
                                                                     : xgrammar::Grammar::FromEBNF(source));
    const TextRulePtr rule = grammar_rule(grammar);
    const TextCursor start(*table_, rule);
    std::vector<uint32_t> mask((static_cast<size_t>(table_->size()) + 31) / 32, 0);
    start.add_mask(mask);
    const bool has_way = std::any_of(mask.begin(), mask.end(), [](uint32_t word) { return word != 0; });
    if (!has_way && !start.complete()) return invalid_argument("{} allows no text at all", field);
    return rule;
  } catch (const std::exception& error) {
    return invalid_argument("{} cannot be followed: {}", field, reason(error));
  }
}

TextRulePtr RuleCompiler::look_up(const std::string& key) {
  const std::lock_guard lock(cache_);
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) {
    ++stats_.misses;
    return nullptr;
  }
  ++stats_.hits;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->rule;
}

int64_t RuleCompiler::bytes_of(const Entry& entry) {
  const std::unique_lock lock(entry.rule->filling, std::try_to_lock);
  if (!lock.owns_lock() && entry.bytes > 0) return entry.bytes;  // busy: as last time
  if (!lock.owns_lock()) return static_cast<int64_t>(2 * entry.key.size());
  return static_cast<int64_t>(sizeof(Entry) + 2 * entry.key.size() + entry.rule->grammar->MemorySizeBytes());
}

void RuleCompiler::keep(std::string key, TextRulePtr rule) {
  const std::lock_guard lock(cache_);
  if (by_key_.contains(key)) return;  // another thread was faster
  entries_.push_front({std::move(key), std::move(rule)});
  by_key_.emplace(entries_.front().key, entries_.begin());
  // Rules grow by the masks of states that answers have met since, so all are weighed again.
  int64_t bytes = 0;
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    entry->bytes = bytes_of(*entry);
    if (bytes + entry->bytes > cache_bytes_max_) {
      by_key_.erase(entry->key);
      entry = entries_.erase(entry);
    } else {
      bytes += entry->bytes;
      ++entry;
    }
  }
  stats_.bytes = bytes;
  stats_.entries = static_cast<int64_t>(entries_.size());
}

RuleCompiler::Stats RuleCompiler::stats() const {
  const std::lock_guard lock(cache_);
  return stats_;
}

}  // namespace perigee::text
