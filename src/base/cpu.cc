#include "base/cpu.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace perigee {
namespace {

#if defined(__x86_64__)
constexpr int kArchReqXcompPerm = 0x1023;  // arch_prctl: request an extended state component
constexpr int kXfeatureTileData = 18;

CpuFeatures detect() {
  __builtin_cpu_init();
  CpuFeatures f;
  f.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  f.avx512 = f.avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  unsigned a = 7;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  __asm__("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
  const bool amx_bits = ((d >> 22) & 1) != 0 && ((d >> 24) & 1) != 0;  // AMX-BF16, AMX-TILE
  f.amx = f.avx512 && amx_bits &&
          ::syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureTileData) == 0;
  return f;
}
#else
CpuFeatures detect() { return {}; }
#endif

}  // namespace

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = detect();
  return features;
}

int cpu_threads() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  const int n = CPU_COUNT(&set);
  return n > 0 ? n : 1;
}

}  // namespace perigee
