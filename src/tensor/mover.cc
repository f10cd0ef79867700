#include "tensor/mover.h"

#include <cstring>

#include "tensor/gpu.h"

namespace perigee::tensor {

void Mover::zero(void* to, size_t bytes) const {
  if (device == Device::kCuda) return gpu_zero(stream, to, bytes);
  std::memset(to, 0, bytes);
}

void Mover::copy(void* to, const void* from, size_t bytes) const {
  if (device == Device::kCuda) return gpu_copy(stream, to, from, bytes);
  std::memcpy(to, from, bytes);
}

void Mover::wait(const char* what) const {
  if (device == Device::kCuda) gpu_wait(stream, what);
}

}  // namespace perigee::tensor
