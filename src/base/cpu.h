// What    Which vector and matrix instructions this machine has.
// Owner   base.
// Threads Pure after the first call.
// Errors  None.
#pragma once

namespace perigee {

struct CpuFeatures {
  bool avx2 = false;    // AVX2, FMA and F16C
  bool avx512 = false;  // AVX-512 F, BW, VL and DQ
  bool amx = false;     // AMX tiles with BF16, and the system's permission to use them
};

// Detects once; asks the system for the AMX tile state on first use.
const CpuFeatures& cpu_features();

// Threads that the process may run on (respects affinity), at least 1.
int cpu_threads();

}  // namespace perigee
