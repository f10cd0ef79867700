// What    Times the operations of a device and prints them beside its measured rates, as a table and as JSON.
// Owner   bench.
// Threads Main thread.
// Errors  Result with one sentence: no such case, no memory for the rates, a report that cannot be written.
//
// Method, CPU. A case runs three times to warm up, then for at least S seconds and five times; its time is the median.
// Method, GPU. After three runs a graph of 20 runs is recorded, of fewer if they take longer than 20 ms; it is launched for at
// least S seconds and five times. The time is the median of a graph's, its launch and the wait for it included, divided by its
// runs.
// Digests are FNV-1a 64 of what the first run gives; equal inputs give equal digests in every run of the program.
#pragma once

#include <string>

#include "base/result.h"
#include "ops/context.h"

namespace perigee::bench {

struct TableOptions {
  std::string only;  // part of "op case"
  double seconds = 0.5;
  std::string json;  // file for the report, if any
};

Status run_table(const ops::Context& context, const TableOptions& options);

}  // namespace perigee::bench
