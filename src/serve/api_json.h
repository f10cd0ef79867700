// What    The pieces of JSON that several replies have in common, appended to a string; and frames of server-sent
//         events.
// Owner   serve.
// Threads Pure functions.
// Errors  None.
// Source  OpenAI's replies; token_ids, prompt_logprobs and token_id:N as in vLLM's.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "serve/session.h"
#include "text/json.h"

namespace perigee::serve {

inline constexpr std::string_view kJsonType = "application/json";
inline constexpr std::string_view kEventStream = "text/event-stream";

// Valid UTF-8 with quotation marks.
void append_quoted(std::string_view utf8, std::string& out);
void append_number(int64_t value, std::string& out);
// -inf and what is below it has no place in JSON: -9999 stands for it.
void append_logprob(double value, std::string& out);
void append_ids(std::span<const int32_t> ids, std::string& out);
std::string quoted(std::string_view utf8);

// How a token is named in log-probabilities.
enum class TokenNames { kText, kTextOrBytes, kIds };
std::string token_name(const text::Tokenizer& tokenizer, int32_t id, TokenNames names);

// {"token":..,"logprob":..,"bytes":[..],"top_logprobs":[..]}, ... without the brackets around.
void append_chat_logprobs(const text::Tokenizer& tokenizer, std::span<const engine::TokenLogprob> tokens, bool as_ids,
                          std::string& out);
// [null,{"id":{"logprob":..,"rank":..,"decoded_token":..}},...] with at most `most` alternatives of each.
void append_prompt_logprobs(const text::Tokenizer& tokenizer,
                            std::span<const std::optional<engine::TokenLogprob>> prompt, int64_t most,
                            std::string& out);

struct Usage {
  int64_t prompt = 0;  // of each prompt once
  int64_t cached = 0;
  int64_t completion = 0;  // of all choices
  int64_t reasoning = 0;
};
Usage usage_of(const Session& session);
Usage usage_of(const Choice& choice);
void append_usage(const Usage& usage, std::string& out);

// null, an id or a string.
void append_stop_reason(const StopMatch& match, std::string& out);

// "call_" and 24 digits, the same for the same request, choice and call.
std::string call_id(std::string_view request_id, size_t choice, int call);

// One error inside a stream that has begun; the stream ends after it, without a finish.
void end_stream_with_error(Reply& reply, const ApiError& error);

// The headers of a stream.
Headers stream_headers();

}  // namespace perigee::serve
