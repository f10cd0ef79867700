// What    Bytes to valid UTF-8, whole or as a stream: what is not UTF-8 becomes U+FFFD by the rule
// of Unicode chapter 3
//         ("maximal subpart", the same as Python's errors="replace"); a code point is never given
//         out in parts.
// Owner   text.
// Threads Functions are pure; a Utf8Stream belongs to one thread.
// Errors  None: every byte sequence has a reading.
// Source  Unicode 15.0 table 3-7 (well-formed byte sequences) and section 3.9 (U+FFFD
// substitution).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace perigee::text {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

// One step of reading UTF-8.
struct Utf8Step {
  enum class Kind { kValid, kInvalid, kIncomplete };
  Kind kind = Kind::kValid;
  char32_t code_point = 0;  // of kValid
  size_t bytes = 0;         // how many bytes the code point, or the part to be replaced, takes
};

// Reads at `at` (< bytes.size()). kIncomplete: the text ends inside a sequence that was good so
// far.
Utf8Step utf8_step(std::string_view bytes, size_t at);

bool is_valid_utf8(std::string_view bytes);

// The text with every part that is not UTF-8 replaced.
std::string replace_invalid_utf8(std::string_view bytes);

// White space as Python's str.isspace() sees it, and "nothing but white space".
bool is_python_space(char32_t code_point);
bool is_blank(std::string_view utf8);

// push() returns what became certain; flush() ends the text and replaces a sequence that stayed
// incomplete.
class Utf8Stream {
 public:
  std::string push(std::string_view bytes);
  std::string flush();
  bool holds_bytes() const { return !held_.empty(); }

 private:
  std::string held_;  // at most 3 bytes: the good beginning of one sequence
};

}  // namespace perigee::text
