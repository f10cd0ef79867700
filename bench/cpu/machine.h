// What    What this machine can do at best: bytes read per second and multiply-adds per second. Benchmarks quote their
//         numbers as parts of these.
// Owner   bench.
// Threads machine_rates runs on a pool of its own; call it from one thread while nothing else runs.
// Errors  None.
//
// Method. Reading: every thread reads its part of a 2 GiB buffer with vector loads. Matrix unit: register-only loops of AMX
// tile products where the processor has them (and once more with two loads from L1 for every two products, as a matrix product
// has them), else of vector fused multiply-adds; a multiply-add counts as two operations.
// Each number is the median of 7 passes.
#pragma once

#include <string>

namespace perigee::bench {

struct MachineRates {
  int threads = 1;
  double read_bytes_per_s = 0;  // all threads
  double read_bytes_per_s_one_thread = 0;
  double vector_flops_per_s = 0;  // FP32 fused multiply-adds of the widest set, all threads
  double matrix_flops_per_s = 0;  // the fastest unit for BF16 products, all threads
  double matrix_fed_flops_per_s = 0;  // the same with operands loaded from L1; 0 unless the unit is AMX
  const char* matrix_unit = "";   // "AMX BF16", "AVX-512 FP32", ...
};

// Measured at the first call, then remembered; every call must ask for the same number of threads.
const MachineRates& machine_rates(int threads);

// The processor's name as the system gives it.
std::string processor_name();

}  // namespace perigee::bench
