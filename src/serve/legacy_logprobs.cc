#include "serve/legacy_logprobs.h"

#include <algorithm>
#include <set>
#include <utility>

#include "serve/api_json.h"

namespace perigee::serve {

namespace {

int64_t count_code_points(std::string_view utf8) {
  return std::count_if(utf8.begin(), utf8.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

}  // namespace

std::string LegacyLogprobs::name(int32_t id) const {
  return token_name(*tokenizer_, id, options_.as_ids ? TokenNames::kIds : TokenNames::kTextOrBytes);
}

void LegacyLogprobs::add(int32_t id, const engine::TokenLogprob* token) {
  for (std::string* list : {&tokens_, &logprobs_, &top_, &offsets_}) {
    if (!list->empty()) *list += ',';
  }
  append_quoted(name(id), tokens_);
  append_number(code_points_, offsets_);
  code_points_ += count_code_points(text_.push(id).value());
  if (token == nullptr) {
    logprobs_ += "null";
    top_ += "null";
    return;
  }
  append_logprob(token->logprob, logprobs_);
  add_top(*token);
}

void LegacyLogprobs::add_top(const engine::TokenLogprob& token) {
  if (options_.top == 0) {
    top_ += "null";
    return;
  }
  std::set<std::string> names;
  const auto add_one = [&](int32_t id, double logprob) {
    const auto [named, is_new] = names.insert(name(id));
    if (!is_new) return;
    if (names.size() > 1) top_ += ',';
    append_quoted(*named, top_);
    top_ += ':';
    append_logprob(logprob, top_);
  };
  top_ += '{';
  const size_t shown = std::min(token.top.size(), static_cast<size_t>(options_.top));
  for (size_t k = 0; k < shown; ++k) add_one(token.top[k].first, token.top[k].second);
  add_one(token.id, token.logprob);
  top_ += '}';
}

void LegacyLogprobs::end_of_prompt() {
  code_points_ += count_code_points(text_.flush());
}

void LegacyLogprobs::append(std::string& out) {
  out += "{\"tokens\":[" + std::exchange(tokens_, {}) + "],\"token_logprobs\":[" + std::exchange(logprobs_, {}) +
         "],\"top_logprobs\":[" + std::exchange(top_, {}) + "],\"text_offset\":[" + std::exchange(offsets_, {}) + "]}";
}

}  // namespace perigee::serve
