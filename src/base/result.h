// What    A value or an error with a code and one sentence that names the file, tensor, field or flag and the way out.
// Owner   base.
// Threads Value types.
// Errors  value() of an error and error() of a value are bugs and abort.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "base/check.h"

namespace perigee {

enum class ErrorCode {
  kInvalidArgument,    // the input is wrong; the caller can fix it
  kNotFound,           // a file, tensor or name that must exist does not
  kIo,                 // the operating system refused
  kOutOfRange,         // a number beyond what the model or format allows
  kResourceExhausted,  // not enough memory or room
  kInternal,           // a fault of ours that was caught in time
};

struct Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;
};

template <class... Args>
Error invalid_argument(fmt::format_string<Args...> text, Args&&... args) {
  return {ErrorCode::kInvalidArgument, fmt::format(text, std::forward<Args>(args)...)};
}
template <class... Args>
Error not_found(fmt::format_string<Args...> text, Args&&... args) {
  return {ErrorCode::kNotFound, fmt::format(text, std::forward<Args>(args)...)};
}
template <class... Args>
Error io_error(fmt::format_string<Args...> text, Args&&... args) {
  return {ErrorCode::kIo, fmt::format(text, std::forward<Args>(args)...)};
}
template <class... Args>
Error out_of_range(fmt::format_string<Args...> text, Args&&... args) {
  return {ErrorCode::kOutOfRange, fmt::format(text, std::forward<Args>(args)...)};
}
template <class... Args>
Error resource_exhausted(fmt::format_string<Args...> text, Args&&... args) {
  return {ErrorCode::kResourceExhausted, fmt::format(text, std::forward<Args>(args)...)};
}

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  T& value() & {
    require_value();
    return *std::get_if<0>(&state_);
  }
  const T& value() const& {
    require_value();
    return *std::get_if<0>(&state_);
  }
  T value() && {  // by value: a reference into a temporary would dangle in a loop or a check
    require_value();
    return std::move(*std::get_if<0>(&state_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  const Error& error() const {
    CHECK(!ok());
    return *std::get_if<1>(&state_);
  }

 private:
  void require_value() const {
    if (!ok()) check_failed(__FILE__, __LINE__, "value() of an error: " + error().message);
  }
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}  // NOLINT

  bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }
  const Error& error() const {
    CHECK(!ok());
    return *error_;
  }

 private:
  std::optional<Error> error_;
};

using Status = Result<void>;

}  // namespace perigee
