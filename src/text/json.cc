#include "text/json.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "text/utf8.h"

namespace perigee::text {

// Receives nlohmann's parse events and builds the document without recursion.
class JsonBuilder {
 public:
  JsonBuilder(std::string_view text, std::string_view what, int depth_max, size_t values_max)
      : text_(text), what_(what), depth_max_(depth_max), values_max_(values_max) {}

  bool null() { return put(Json()); }
  bool boolean(bool value) { return put(Json::boolean(value)); }
  bool number_integer(int64_t value) {
    return put_number(Json::Kind::kInteger, std::to_string(value));
  }
  bool number_unsigned(uint64_t value) {
    return put_number(Json::Kind::kInteger, std::to_string(value));
  }
  bool number_float(double, const std::string& lexeme) {
    const bool whole = lexeme.find_first_of(".eE") == std::string::npos;
    return put_number(whole ? Json::Kind::kInteger : Json::Kind::kFloat, lexeme);
  }
  bool string(std::string& value) { return put(Json::string(std::move(value))); }
  bool binary(std::vector<std::uint8_t>&) { return false; }  // no such thing in JSON text
  bool start_object(size_t) { return open(Json::object({})); }
  bool start_array(size_t) { return open(Json::array({})); }
  bool key(std::string& name) {
    keys_.back() = std::move(name);
    return true;
  }
  bool end_object() {
    keep_last_of_equal_keys(open_.back().members());
    return close();
  }
  bool end_array() { return close(); }
  bool parse_error(size_t position, const std::string& last_token,
                   const nlohmann::detail::exception& e) {
    if (e.id == 406) {
      fail(position, fmt::format("the number {} is too large", shortened(last_token)));
      bad_member_ = path();
    } else if (position > text_.size()) {
      fail(position, "the text ends too early");
    } else {
      fail(position, fmt::format("cannot read on at '{}'", shortened(last_token)));
      bad_member_ = path();
    }
    return false;
  }

  Result<Json> take() {
    if (!error_.empty()) return invalid_argument("{}", error_);
    return std::move(root_);
  }

  // Of the member whose value could not be read; empty: the trouble lies elsewhere.
  const std::string& bad_member() const { return bad_member_; }

 private:
  bool put(Json value) {
    if (++values_ > values_max_) {
      error_ = fmt::format("{} holds more than {} values", what_, values_max_);
      return false;
    }
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (open_.back().is_array()) {
      open_.back().items_.push_back(std::move(value));
    } else {
      open_.back().members_.emplace_back(std::exchange(keys_.back(), {}), std::move(value));
    }
    return true;
  }

  bool put_number(Json::Kind kind, std::string lexeme) {
    Json number;
    number.kind_ = kind;
    number.text_ = std::move(lexeme);
    return put(std::move(number));
  }

  bool open(Json container) {
    if (static_cast<int>(open_.size()) == depth_max_) {
      error_ = fmt::format("{} is nested deeper than {} levels", what_, depth_max_);
      return false;
    }
    open_.push_back(std::move(container));
    keys_.emplace_back();
    return true;
  }

  bool close() {
    Json done = std::move(open_.back());
    open_.pop_back();
    keys_.pop_back();
    return put(std::move(done));
  }

  static void keep_last_of_equal_keys(std::vector<Json::Member>& members) {
    if (members.size() < 2) return;
    std::unordered_map<std::string_view, size_t> first_at;
    first_at.reserve(members.size());
    std::vector<bool> repeated(members.size(), false);
    bool any = false;
    for (size_t i = 0; i < members.size(); ++i) {
      const auto [place, is_new] = first_at.emplace(members[i].first, i);
      if (is_new) continue;
      members[place->second].second = std::move(members[i].second);
      repeated[i] = any = true;
    }
    if (!any) return;
    std::vector<Json::Member> kept;
    for (size_t i = 0; i < members.size(); ++i) {
      if (!repeated[i]) kept.push_back(std::move(members[i]));
    }
    members = std::move(kept);
  }

  // Of the value under way. A key is empty once its value is there; then no member is to blame.
  std::string path() const {
    std::string out;
    for (size_t i = 0; i < open_.size(); ++i) {
      if (open_[i].is_array()) {
        out += fmt::format("[{}]", open_[i].items_.size());
      } else if (keys_[i].empty()) {
        return {};
      } else {
        out += (out.empty() ? "" : ".") + keys_[i];
      }
    }
    return out;
  }

  static std::string shortened(const std::string& token) {
    const size_t kept = std::min<size_t>(token.size(), 24);
    return replace_invalid_utf8(token.substr(token.size() - kept));
  }

  void fail(size_t position, const std::string& reason) {
    size_t line = 1, column = 1;
    for (size_t i = 0; i + 1 < position && i < text_.size(); ++i) {
      line += text_[i] == '\n';
      column = text_[i] == '\n' ? 1 : column + 1;
    }
    error_ =
        fmt::format("{} is not valid JSON at line {}, column {}: {}", what_, line, column, reason);
  }

  std::string_view text_;
  std::string_view what_;
  int depth_max_;
  size_t values_max_;
  size_t values_ = 0;
  Json root_;
  std::vector<Json> open_;         // containers from the root inwards
  std::vector<std::string> keys_;  // the key that waits for its value, per open container
  std::string error_;
  std::string bad_member_;
};

Json Json::boolean(bool value) {
  Json out;
  out.kind_ = Kind::kBool;
  out.bool_ = value;
  return out;
}

Json Json::integer(int64_t value) {
  Json out;
  out.kind_ = Kind::kInteger;
  out.text_ = std::to_string(value);
  return out;
}

Json Json::string(std::string value) {
  Json out;
  out.kind_ = Kind::kString;
  out.text_ = std::move(value);
  return out;
}

Json Json::array(std::vector<Json> items) {
  Json out;
  out.kind_ = Kind::kArray;
  out.items_ = std::move(items);
  return out;
}

Json Json::object(std::vector<Member> members) {
  Json out;
  out.kind_ = Kind::kObject;
  out.members_ = std::move(members);
  return out;
}

const char* Json::kind_name() const {
  switch (kind_) {
    case Kind::kNull:
      return "null";
    case Kind::kBool:
      return "a boolean";
    case Kind::kInteger:
    case Kind::kFloat:
      return "a number";
    case Kind::kString:
      return "a string";
    case Kind::kArray:
      return "an array";
    case Kind::kObject:
      return "an object";
  }
  return "";
}

bool Json::as_bool() const {
  CHECK(is_bool());
  return bool_;
}

double Json::as_double() const {
  const std::string& lexeme = number_lexeme();
  double value =
      lexeme.front() == '-' ? -0.0 : 0.0;  // stays where the lexeme is too small for a double
  std::from_chars(lexeme.data(), lexeme.data() + lexeme.size(), value);
  return value;
}

const std::string& Json::as_string() const {
  CHECK(is_string());
  return text_;
}

const std::vector<Json>& Json::items() const {
  CHECK(is_array());
  return items_;
}

const std::vector<Json::Member>& Json::members() const {
  CHECK(is_object());
  return members_;
}

std::vector<Json>& Json::items() {
  CHECK(is_array());
  return items_;
}

std::vector<Json::Member>& Json::members() {
  CHECK(is_object());
  return members_;
}

const std::string& Json::number_lexeme() const {
  CHECK(is_number());
  return text_;
}

Result<int64_t> Json::as_int64() const {
  if (kind_ != Kind::kInteger) return invalid_argument("must be an integer, not {}", kind_name());
  int64_t value = 0;
  const auto [end, problem] = std::from_chars(text_.data(), text_.data() + text_.size(), value);
  if (problem != std::errc() || end != text_.data() + text_.size()) {
    return out_of_range("{} does not fit in 64 bits", text_);
  }
  return value;
}

const Json* Json::find(std::string_view key) const {
  if (!is_object()) return nullptr;
  for (const Member& member : members_) {
    if (member.first == key) return &member.second;
  }
  return nullptr;
}

const Json* Json::find_set(std::string_view key) const {
  const Json* value = find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

Result<Json> parse_json(std::string_view text, std::string_view what, int depth_max, std::string* field,
                        size_t values_max) {
  JsonBuilder builder(text, what, depth_max, values_max);
  nlohmann::json::sax_parse(text.begin(), text.end(), &builder);
  if (field != nullptr && !builder.bad_member().empty()) *field = builder.bad_member();
  return builder.take();
}

void append_json_escaped(std::string_view text, std::string& out) {
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        } else {
          out += c;
        }
    }
  }
}

std::string python_float_repr(double value) {
  char buffer[32];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  std::string_view shown(buffer, static_cast<size_t>(end.ptr - buffer));
  const std::string sign = shown.front() == '-' ? "-" : "";
  shown.remove_prefix(sign.size());
  const size_t e = shown.find('e');
  int exponent = 0;
  const char* exponent_text = shown.data() + e + 1;
  if (*exponent_text == '+') ++exponent_text;  // from_chars reads no plus sign
  std::from_chars(exponent_text, shown.data() + shown.size(), exponent);
  std::string digits(1, shown[0]);
  if (e > 2) digits += shown.substr(2, e - 2);
  const int count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    const std::string fraction = count > 1 ? "." + digits.substr(1) : "";
    return fmt::format("{}{}{}e{}{:02d}", sign, digits[0], fraction, exponent < 0 ? '-' : '+',
                       std::abs(exponent));
  }
  if (exponent < 0) {
    return sign + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  }
  if (exponent + 1 >= count) {
    return sign + digits + std::string(static_cast<size_t>(exponent + 1 - count), '0') + ".0";
  }
  digits.insert(static_cast<size_t>(exponent + 1), ".");
  return sign + digits;
}

namespace {

// Depth of the recursion is that of the document, which parse_json bounds.
class JsonPrinter {
 public:
  JsonPrinter(const JsonStyle& style, std::string& out) : style_(style), out_(out) {}

  void print(const Json& value) {
    switch (value.kind()) {
      case Json::Kind::kNull:
        out_ += "null";
        break;
      case Json::Kind::kBool:
        out_ += value.as_bool() ? "true" : "false";
        break;
      case Json::Kind::kInteger:
        print_integer(value.number_lexeme());
        break;
      case Json::Kind::kFloat:
        print_float(value);
        break;
      case Json::Kind::kString:
        print_string(value.as_string());
        break;
      case Json::Kind::kArray:
        print_array(value.items());
        break;
      case Json::Kind::kObject:
        print_object(value.members());
        break;
    }
  }

 private:
  void print_integer(const std::string& lexeme) {
    const bool minus_zero =
        lexeme == "-0" && !style_.number_lexemes;  // an int of Python has no minus zero
    out_ += minus_zero ? "0" : lexeme;
  }

  void print_float(const Json& value) {
    out_ += style_.number_lexemes ? value.number_lexeme() : python_float_repr(value.as_double());
  }

  void print_string(std::string_view text) {
    out_ += '"';
    append_json_escaped(text, out_);
    out_ += '"';
  }

  void print_array(const std::vector<Json>& items) {
    out_ += '[';
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_ += style_.item_separator;
      print(items[i]);
    }
    out_ += ']';
  }

  void print_object(const std::vector<Json::Member>& members) {
    std::vector<const Json::Member*> order;
    order.reserve(members.size());
    for (const Json::Member& member : members) order.push_back(&member);
    if (style_.sort_keys) {  // bytes of UTF-8 sort as code points do
      std::stable_sort(order.begin(), order.end(),
                       [](const auto* a, const auto* b) { return a->first < b->first; });
    }
    out_ += '{';
    for (size_t i = 0; i < order.size(); ++i) {
      if (i > 0) out_ += style_.item_separator;
      print_string(order[i]->first);
      out_ += style_.key_separator;
      print(order[i]->second);
    }
    out_ += '}';
  }

  const JsonStyle& style_;
  std::string& out_;
};

}  // namespace

std::string print_json(const Json& value, const JsonStyle& style) {
  std::string out;
  JsonPrinter(style, out).print(value);
  return out;
}

}  // namespace perigee::text
