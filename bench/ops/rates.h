// What    What the device of a context can do at best: benchmarks quote their numbers as parts of these rates.
// Owner   bench. The CPU's are those of bench/cpu/machine.h.
// Threads Call from one thread while nothing else runs.
// Errors  Result when memory for the measurement is refused.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "ops/context.h"

namespace perigee::bench {

struct Rates {
  std::string processor;
  double bytes_per_s = 0;
  std::string bytes_method;
  double matrix_flops_per_s = 0;  // of BF16 products
  std::string matrix_method;
  std::vector<std::pair<std::string, double>> more;  // by the names that the JSON report gives them
};

Result<Rates> measure_rates(const ops::Context& context);

// Bytes read and written per second by one large copy where the device computes; best of 5. 0 if memory is refused.
double copy_bytes_per_s(const ops::Context& context);

}  // namespace perigee::bench
