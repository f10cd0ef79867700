#include "serve/api_json.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/rng.h"
#include "text/utf8.h"

namespace perigee::serve {

namespace {

constexpr double kLogprobFloor = -9999.0;

std::string_view bytes_of(const text::Tokenizer& tokenizer, int32_t id) {
  const Result<std::string_view> bytes = tokenizer.token_bytes(id);
  return bytes.ok() ? *bytes : std::string_view();
}

void append_entry(const text::Tokenizer& tokenizer, int32_t id, double logprob, bool as_ids, std::string& out) {
  out += "{\"token\":";
  append_quoted(token_name(tokenizer, id, as_ids ? TokenNames::kIds : TokenNames::kText), out);
  out += ",\"logprob\":";
  append_logprob(logprob, out);
  out += ",\"bytes\":[";
  bool first = true;
  for (const char c : bytes_of(tokenizer, id)) {
    if (!first) out += ',';
    first = false;
    append_number(static_cast<unsigned char>(c), out);
  }
  out += ']';
}

void append_prompt_entry(const text::Tokenizer& tokenizer, int32_t id, double logprob, size_t rank, std::string& out) {
  out += '"';
  append_number(id, out);
  out += "\":{\"logprob\":";
  append_logprob(logprob, out);
  out += ",\"rank\":";
  rank == 0 ? void(out += "null") : append_number(static_cast<int64_t>(rank), out);
  out += ",\"decoded_token\":";
  append_quoted(token_name(tokenizer, id, TokenNames::kText), out);
  out += '}';
}

}  // namespace

void append_quoted(std::string_view utf8, std::string& out) {
  out += '"';
  text::append_json_escaped(utf8, out);
  out += '"';
}

std::string quoted(std::string_view utf8) {
  std::string out;
  append_quoted(utf8, out);
  return out;
}

void append_number(int64_t value, std::string& out) {
  char buffer[24];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value);
  out.append(buffer, end.ptr);
}

void append_logprob(double value, std::string& out) {
  const double shown = value >= kLogprobFloor && std::isfinite(value) ? value : kLogprobFloor;
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, shown);
  out.append(buffer, end.ptr);
}

void append_ids(std::span<const int32_t> ids, std::string& out) {
  out += '[';
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) out += ',';
    append_number(ids[i], out);
  }
  out += ']';
}

std::string token_name(const text::Tokenizer& tokenizer, int32_t id, TokenNames names) {
  if (names == TokenNames::kIds) return fmt::format("token_id:{}", id);
  const std::string_view bytes = bytes_of(tokenizer, id);
  if (text::is_valid_utf8(bytes)) return std::string(bytes);
  if (names == TokenNames::kText) return text::replace_invalid_utf8(bytes);
  std::string out = "bytes:";
  for (const char c : bytes) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return out;
}

void append_chat_logprobs(const text::Tokenizer& tokenizer, std::span<const engine::TokenLogprob> tokens, bool as_ids,
                          std::string& out) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0) out += ',';
    append_entry(tokenizer, tokens[i].id, tokens[i].logprob, as_ids, out);
    out += ",\"top_logprobs\":[";
    bool first = true;
    for (const auto& [id, logprob] : tokens[i].top) {
      if (!first) out += ',';
      first = false;
      append_entry(tokenizer, id, logprob, as_ids, out);
      out += '}';
    }
    out += "]}";
  }
}

void append_prompt_logprobs(const text::Tokenizer& tokenizer,
                            std::span<const std::optional<engine::TokenLogprob>> prompt, int64_t most,
                            std::string& out) {
  out += '[';
  for (size_t i = 0; i < prompt.size(); ++i) {
    if (i > 0) out += ',';
    if (!prompt[i].has_value()) {
      out += "null";
      continue;
    }
    const engine::TokenLogprob& token = *prompt[i];
    size_t own_rank = 0;
    for (size_t k = 0; k < token.top.size(); ++k) {
      if (token.top[k].first == token.id) own_rank = k + 1;
    }
    out += '{';
    append_prompt_entry(tokenizer, token.id, token.logprob, own_rank, out);
    for (size_t k = 0; k < std::min(token.top.size(), static_cast<size_t>(most)); ++k) {
      if (token.top[k].first == token.id) continue;
      out += ',';
      append_prompt_entry(tokenizer, token.top[k].first, token.top[k].second, k + 1, out);
    }
    out += '}';
  }
  out += ']';
}

Usage usage_of(const Choice& choice) {
  return {choice.prompt_tokens, choice.cached_tokens, choice.answer.tokens(), choice.answer.reasoning_tokens()};
}

Usage usage_of(const Session& session) {
  Usage sum;
  size_t prompt = session.choices().size();
  for (const auto& choice : session.choices()) {
    const Usage one = usage_of(*choice);
    sum.completion += one.completion;
    sum.reasoning += one.reasoning;
    if (choice->prompt == prompt) continue;
    prompt = choice->prompt;
    sum.prompt += one.prompt;
    sum.cached += one.cached;
  }
  return sum;
}

void append_usage(const Usage& usage, std::string& out) {
  out += "{\"prompt_tokens\":";
  append_number(usage.prompt, out);
  out += ",\"completion_tokens\":";
  append_number(usage.completion, out);
  out += ",\"total_tokens\":";
  append_number(usage.prompt + usage.completion, out);
  out += ",\"prompt_tokens_details\":{\"cached_tokens\":";
  append_number(usage.cached, out);
  out += "},\"completion_tokens_details\":{\"reasoning_tokens\":";
  append_number(usage.reasoning, out);
  out += "}}";
}

void append_stop_reason(const StopMatch& match, std::string& out) {
  if (match.text.has_value()) {
    append_quoted(*match.text, out);
  } else if (match.id.has_value()) {
    append_number(*match.id, out);
  } else {
    out += "null";
  }
}

std::string call_id(std::string_view request_id, size_t choice, int call) {
  const uint64_t key = random_bits(hash_name(request_id), choice);
  const uint64_t low = random_bits(key, static_cast<uint64_t>(call));
  return fmt::format("call_{:016x}{:08x}", low, static_cast<uint32_t>(mix64(low ^ key)));
}

void end_stream_with_error(Reply& reply, const ApiError& error) {
  reply.write("data: " + error_body(error) + "\n\n");
  reply.end();
}

Headers stream_headers() {
  return {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
}

}  // namespace perigee::serve
