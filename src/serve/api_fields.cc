#include "serve/api_fields.h"

#include <algorithm>
#include <cctype>
#include <cmath>

namespace perigee::serve {

using text::Json;

std::optional<int64_t> whole_number(const Json& value) {
  if (value.kind() == Json::Kind::kInteger) {
    const Result<int64_t> whole = value.as_int64();
    return whole.ok() ? std::optional<int64_t>(*whole) : std::nullopt;
  }
  if (value.kind() != Json::Kind::kFloat) return std::nullopt;
  const double number = value.as_double();
  constexpr double kExactMax = 9007199254740992.0;  // 2^53: every whole number up to it is a double
  if (std::floor(number) != number || std::abs(number) > kExactMax) return std::nullopt;
  return static_cast<int64_t>(number);
}

bool is_field_name(std::string_view word) {
  constexpr std::string_view kOthers = "_.[]$";
  if (word.empty() || word.front() < 'a' || word.front() > 'z') return false;
  return std::all_of(word.begin(), word.end(), [&](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || kOthers.find(c) != std::string_view::npos;
  });
}

Result<int32_t> read_id(const Json& value, int64_t vocab, std::string_view field) {
  const std::optional<int64_t> id = whole_number(value);
  if (!id.has_value()) return invalid_argument("{} must hold token ids, not {}", field, value.kind_name());
  if (*id < 0 || *id >= vocab) {
    return out_of_range("{} holds the token id {}, but ids are 0 to {}", field, *id, vocab - 1);
  }
  return static_cast<int32_t>(*id);
}

void Fields::fail(ApiError error) {
  if (!failed()) error_ = std::move(error);
}

void Fields::fail(std::string_view key, std::string_view rest, std::string code) {
  if (failed()) return;
  ApiError error;
  error.param = name(key);
  error.message = error.param + ' ' + std::string(rest);
  error.code = std::move(code);
  error_ = std::move(error);
}

bool Fields::flag(std::string_view key, bool fallback) {
  const Json* value = get(key);
  if (value == nullptr || failed()) return fallback;
  if (value->is_bool()) return value->as_bool();
  fail(key, fmt::format("must be true or false, not {}", value->kind_name()));
  return fallback;
}

int64_t Fields::integer(std::string_view key, int64_t fallback, int64_t low, int64_t high) {
  const Json* value = get(key);
  if (value == nullptr || failed()) return fallback;
  const std::optional<int64_t> whole = whole_number(*value);
  if (whole.has_value() && *whole >= low && *whole <= high) return *whole;
  if (!whole.has_value()) {
    fail(key, fmt::format("must be an integer, not {}",
                          value->is_number() ? value->number_lexeme().substr(0, 32) : value->kind_name()));
  } else if (high == kInt64Max) {
    fail(key, fmt::format("must be at least {}, not {}", low, *whole));
  } else {
    fail(key, fmt::format("must be {} to {}, not {}", low, high, *whole));
  }
  return fallback;
}

double Fields::number(std::string_view key, double fallback, double low, double high) {
  const Json* value = get(key);
  if (value == nullptr || failed()) return fallback;
  if (!value->is_number()) {
    fail(key, fmt::format("must be a number, not {}", value->kind_name()));
    return fallback;
  }
  const double number = value->as_double();
  if (number >= low && number <= high) return number;
  fail(key, fmt::format("must be {} to {}, not {}", low, high, value->number_lexeme().substr(0, 32)));
  return fallback;
}

std::string Fields::string(std::string_view key, size_t bytes_max, std::string fallback) {
  const Json* value = get(key);
  if (value == nullptr || failed()) return fallback;
  if (!value->is_string()) {
    fail(key, fmt::format("must be a string, not {}", value->kind_name()));
  } else if (value->as_string().size() > bytes_max) {
    fail(key, fmt::format("has {} bytes; at most {} are allowed", value->as_string().size(), bytes_max));
  } else {
    return value->as_string();
  }
  return fallback;
}

std::vector<int32_t> Fields::ids(std::string_view key, int64_t vocab, size_t count_max) {
  const Json* value = get(key);
  if (value == nullptr || failed()) return {};
  if (!value->is_array()) {
    fail(key, fmt::format("must be a list of token ids, not {}", value->kind_name()));
    return {};
  }
  if (value->items().size() > count_max) {
    fail(key, fmt::format("holds {} ids; at most {} are allowed", value->items().size(), count_max));
    return {};
  }
  std::vector<int32_t> out;
  out.reserve(value->items().size());
  for (const Json& item : value->items()) {
    const Result<int32_t> id = read_id(item, vocab, name(key));
    if (!id.ok()) {
      fail(api_error(id.error(), name(key)));
      return {};
    }
    out.push_back(*id);
  }
  return out;
}

std::vector<std::string> Fields::strings(std::string_view key, size_t count_max, size_t bytes_max) {
  const Json* value = get(key);
  if (value == nullptr || failed()) return {};
  const bool is_one = value->is_string();
  if (!is_one && !value->is_array()) {
    fail(key, fmt::format("must be a string or a list of strings, not {}", value->kind_name()));
    return {};
  }
  const size_t count = is_one ? 1 : value->items().size();
  if (count > count_max) {
    fail(key, fmt::format("holds {} strings; at most {} are allowed", count, count_max));
    return {};
  }
  std::vector<std::string> out;
  for (size_t i = 0; i < count; ++i) {
    const Json& item = is_one ? *value : value->items()[i];
    if (!item.is_string() || item.as_string().empty()) {
      fail(key, "must hold strings that are not empty");
      return {};
    }
    if (item.as_string().size() > bytes_max) {
      fail(key, fmt::format("holds a string of {} bytes; at most {} are allowed", item.as_string().size(), bytes_max));
      return {};
    }
    out.push_back(item.as_string());
  }
  return out;
}

void Fields::refuse(std::string_view key, std::string_view why) {
  const Json* value = get(key);
  if (value == nullptr || failed()) return;
  const bool is_neutral = (value->is_bool() && !value->as_bool()) || (value->is_number() && value->as_double() == 0) ||
                          (value->is_string() && value->as_string().empty()) ||
                          (value->is_array() && value->items().empty()) ||
                          (value->is_object() && value->members().empty());
  if (!is_neutral) fail(key, fmt::format("is not supported{}{}", why.empty() ? "" : ": ", why));
}

}  // namespace perigee::serve
