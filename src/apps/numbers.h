// What    Numbers in JSON output: the shortest decimal that reads back to the same FP32 (or FP64); null when not finite.
// Owner   apps.
// Threads Pure functions.
// Errors  None.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <string>

namespace perigee::apps {

inline std::string number(double value, bool single) {
  if (!std::isfinite(value)) return "null";
  return single ? fmt::format("{}", static_cast<float>(value)) : fmt::format("{}", value);
}

}  // namespace perigee::apps
