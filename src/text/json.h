// What    A small JSON document that keeps the order of members and the spelling of numbers, and
// prints as Python's
//         json.dumps(ensure_ascii=False) does, because prompts must hold the very text that the
//         model was trained on. Source texts `1`, `1.0`, `1e16` and integers of any size (up to 308
//         digits) stay different things.
// Owner   text.
// Threads Value type.
// Errors  parse() returns a sentence with line and column. A document that is too deep, has too many
//         values, holds a lone surrogate, or a number beyond a double is refused. Of members with the same key
//         the last value counts, at the first one's place, as in a Python dict.
// Source  RFC 8259; Python's json and float.__repr__.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace perigee::text {

class Json {
 public:
  enum class Kind { kNull, kBool, kInteger, kFloat, kString, kArray, kObject };
  using Member = std::pair<std::string, Json>;

  Json() = default;
  static Json boolean(bool value);
  static Json integer(int64_t value);
  static Json string(std::string value);
  static Json array(std::vector<Json> items);
  static Json object(std::vector<Member> members);

  Kind kind() const { return kind_; }
  bool is_null() const { return kind_ == Kind::kNull; }
  bool is_bool() const { return kind_ == Kind::kBool; }
  bool is_number() const { return kind_ == Kind::kInteger || kind_ == Kind::kFloat; }
  bool is_string() const { return kind_ == Kind::kString; }
  bool is_array() const { return kind_ == Kind::kArray; }
  bool is_object() const { return kind_ == Kind::kObject; }
  // "null", "a boolean", "a number", "a string", "an array", "an object": for sentences.
  const char* kind_name() const;

  // Each requires its kind.
  bool as_bool() const;
  double as_double() const;
  const std::string& as_string() const;
  const std::vector<Json>& items() const;
  const std::vector<Member>& members() const;
  std::vector<Json>& items();
  std::vector<Member>& members();
  const std::string& number_lexeme() const;  // as written in the source text

  // The value as a whole number, if it is written as an integer and fits.
  Result<int64_t> as_int64() const;

  // Of an object: the member's value, or nullptr when absent (or when this is no object).
  const Json* find(std::string_view key) const;
  // As find(), with a null value taken as absent.
  const Json* find_set(std::string_view key) const;

  friend bool operator==(const Json& a, const Json& b) = default;

 private:
  friend class JsonBuilder;
  Kind kind_ = Kind::kNull;
  bool bool_ = false;
  std::string text_;  // the string, or the number's lexeme
  std::vector<Json> items_;
  std::vector<Member> members_;
};

inline constexpr int kJsonDepthMax =
    128;  // deeper documents are attacks; Python itself stops at about 1,000

// Two bytes of text make a value of about a hundred, so the values are bounded as well as the text: two million are a full
// context of token ids twice.
inline constexpr size_t kJsonValuesMax = 2 << 20;

// `what` names the text in the error sentence: a file, a field. When the value of a member cannot be
// read (NaN, 1e999), `field` gets that member's path, as in a.b[2].c; otherwise it stays as it is.
Result<Json> parse_json(std::string_view text, std::string_view what, int depth_max = kJsonDepthMax,
                        std::string* field = nullptr, size_t values_max = kJsonValuesMax);

struct JsonStyle {
  std::string_view item_separator = ", ";
  std::string_view key_separator = ": ";
  bool sort_keys = false;  // on every level, by code point
  bool number_lexemes =
      false;  // numbers as they were written instead of as Python would print them
};
inline constexpr JsonStyle kJsonDefault{};
inline constexpr JsonStyle kJsonCompact{",", ":"};
inline constexpr JsonStyle kJsonCompactSorted{",", ":", true};

std::string print_json(const Json& value, const JsonStyle& style = kJsonDefault);

// Appends text as the inside of a JSON string, without the quotes. Text may come in pieces of whole
// code points.
void append_json_escaped(std::string_view text, std::string& out);

// Python's repr of a finite float: the shortest digits that read back, exponent form below 1e-4 and
// from 1e16.
std::string python_float_repr(double value);

}  // namespace perigee::text
