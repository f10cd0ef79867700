// What    The textual parts of HTTP/1.1: request targets, request ids, response heads, chunks.
// Owner   serve.
// Threads Pure, except for make_request_id() (random) and http_date() (the clock); all may be called from any thread.
// Errors  parse_target() returns none for a target with broken escapes.
// Source  RFC 9110, RFC 9112.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "serve/exchange.h"

namespace perigee::serve {

struct Target {
  std::string path;
  std::map<std::string, std::string> query;  // of a repeated name the last value counts
};

// Splits and decodes "/path?name=value&..."; the absolute form "http://host/path" loses its host.
std::optional<Target> parse_target(std::string_view target);

// What may stand in logs and be echoed: 1 to 128 visible ASCII characters other than quotes and backslashes.
bool is_request_id(std::string_view id);
std::string make_request_id();  // 32 hexadecimal digits

std::string_view reason_phrase(int status);
std::string http_date();  // of now

// "Name: value\r\n"; line breaks and other control characters in a value become blanks, so that nobody can add headers.
void append_header(std::string& out, std::string_view name, std::string_view value);

// One piece of a chunked body. Empty pieces add nothing, because an empty chunk would end the body.
void append_chunk(std::string& out, std::string_view piece);
inline constexpr std::string_view kLastChunk = "0\r\n\r\n";

// Compares as header names and tokens do: without regard to ASCII case.
bool equal_ignoring_case(std::string_view a, std::string_view b);
std::string lower_case(std::string_view text);

// The media type of a Content-Type value, in lower case and without parameters.
std::string media_type(std::string_view content_type);

}  // namespace perigee::serve
