// What    Copies and clears memory where a device computes: at once on the host, in the order of a stream on a GPU.
// Owner   tensor.
// Threads A stream is used by one thread at a time.
// Errors  What fails is a fault of the machine or of ours and aborts with a name.
#pragma once

#include <cstddef>

#include "tensor/tensor.h"

namespace perigee::tensor {

struct Mover {
  Device device = Device::kCpu;
  void* stream = nullptr;  // kCuda: a cudaStream_t

  void zero(void* to, size_t bytes) const;
  // Between any two places. Host memory that is not pinned may be used again when the call returns.
  void copy(void* to, const void* from, size_t bytes) const;
  // Waits for everything so far; `what` is named if some of it failed.
  void wait(const char* what) const;
};

}  // namespace perigee::tensor
