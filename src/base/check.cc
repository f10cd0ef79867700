#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace perigee {

void check_failed(const char* file, int line, const std::string& text) {
  std::fflush(stdout);
  fmt::print(stderr, "CHECK failed: {} at {}:{}\n", text, file, line);
  std::fflush(stderr);
  std::abort();
}

}  // namespace perigee
