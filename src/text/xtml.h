// What    The spellings of Kimi K3's wire format that the renderer (chat.h) and the output parser
// share. Owner   text. Threads Constants and pure functions. Errors  None. Source  chat.h.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace perigee::text::xtml {

inline constexpr std::string_view kOpen = "<|open|>";
inline constexpr std::string_view kClose = "<|close|>";
inline constexpr std::string_view kSep = "<|sep|>";
inline constexpr std::string_view kEndOfMessage = "<|end_of_msg|>";

std::string escape_attribute(std::string_view value);
std::string unescape_attribute(std::string_view value);

// The text between <|open|> and <|sep|>: a tag and attributes. Attributes that are not written `
// key="value"` end the list.
struct Header {
  std::string tag;
  std::vector<std::pair<std::string, std::string>> attributes;

  const std::string* find(std::string_view key) const;
};
Header parse_header(std::string_view text);

}  // namespace perigee::text::xtml
