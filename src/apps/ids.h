// What    Token id lists from JSON files.
// Owner   apps.
// Threads Pure functions.
// Errors  Result that names the file and the place.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace perigee::apps {

struct IdLists {
  std::vector<std::vector<int32_t>> sequences;
  bool nested = false;  // the file held an array of arrays
};

// An array of ids, or an array of arrays of ids.
Result<IdLists> read_id_lists(const std::string& path);

}  // namespace perigee::apps
