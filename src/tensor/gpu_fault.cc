#include "tensor/gpu_fault.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace perigee::tensor {
namespace {

std::atomic<int64_t> current_step = -1;

}  // namespace

void set_gpu_step(int64_t step) { current_step.store(step, std::memory_order_relaxed); }

void gpu_fault(const char* what, const char* reason, const char* code) {
  const int64_t step = current_step.load(std::memory_order_relaxed);
  char place[48] = "outside of a step";
  if (step >= 0) std::snprintf(place, sizeof(place), "in step %lld", static_cast<long long>(step));
  std::fprintf(stderr, "perigee: the GPU failed at %s %s: %s (%s)\n", what, place, reason, code);
  std::fflush(nullptr);
  std::_Exit(1);
}

}  // namespace perigee::tensor
