// What    Reads the members of a request's JSON object one by one. The first thing that is wrong is kept as the
//         answer to the client, and every later read gives its fallback, so that a reader is a plain list of fields.
// Owner   serve.
// Threads One reader, one thread; the object must outlive it.
// Errors  error(): 400 with one sentence and the field's name.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serve/errors.h"
#include "text/json.h"

namespace perigee::serve {

inline constexpr int64_t kInt64Max = std::numeric_limits<int64_t>::max();
inline constexpr int64_t kInt64Min = std::numeric_limits<int64_t>::min();

class Fields {
 public:
  // `prefix` stands before every name in sentences, e.g. "sampling_params.".
  explicit Fields(const text::Json& object, std::string prefix = {}) : object_(&object), prefix_(std::move(prefix)) {}

  // The member, or null when it is absent or null.
  const text::Json* get(std::string_view key) const { return object_->find_set(key); }
  bool flag(std::string_view key, bool fallback);
  // Both ends belong to the range.
  int64_t integer(std::string_view key, int64_t fallback, int64_t low, int64_t high);
  double number(std::string_view key, double fallback, double low, double high);
  std::string string(std::string_view key, size_t bytes_max, std::string fallback = {});
  // Token ids below `vocab`.
  std::vector<int32_t> ids(std::string_view key, int64_t vocab, size_t count_max);
  // One string or a list of them, none empty.
  std::vector<std::string> strings(std::string_view key, size_t count_max, size_t bytes_max);
  // A field that this server knows and does not support: anything but null, false, 0, "", [] and {} is refused.
  void refuse(std::string_view key, std::string_view why);

  void fail(std::string_view key, std::string_view rest, std::string code = {});
  void fail(ApiError error);
  bool failed() const { return error_.has_value(); }
  const std::optional<ApiError>& error() const { return error_; }
  std::string name(std::string_view key) const { return prefix_ + std::string(key); }
  const text::Json& object() const { return *object_; }

 private:
  const text::Json* object_;
  std::string prefix_;
  std::optional<ApiError> error_;
};

// Whether a word can be the path of a field, as in tools[0].function.name; sentences of other rooms begin with one.
bool is_field_name(std::string_view word);

// One token id of a list called `field`.
Result<int32_t> read_id(const text::Json& value, int64_t vocab, std::string_view field);
// Whole numbers may be written with a fraction of zero.
std::optional<int64_t> whole_number(const text::Json& value);

}  // namespace perigee::serve
