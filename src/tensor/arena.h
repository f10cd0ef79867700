// What    One growing block of zeroed memory, of the host (huge-page-friendly) or of a GPU, that hands out aligned pieces
//         and can be frozen.
// Owner   tensor.
// Threads One writer; pieces may be used from any thread.
// Errors  Result when the system has no memory; allocation after freeze() is a bug.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/result.h"
#include "tensor/gpu.h"
#include "tensor/tensor.h"

namespace perigee::tensor {

constexpr size_t kAlignment = 64;  // a cache line, and the widest vector

constexpr size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

class Arena {
 public:
  // Reserves `bytes` at once where `device` computes; `what` names the purpose in messages ("weights", "workspace").
  static Result<Arena> create(size_t bytes, const std::string& what, Device device = Device::kCpu);
  Arena() = default;
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena();

  std::byte* allocate(size_t bytes);
  Tensor tensor(DType dtype, std::initializer_list<int64_t> dims);

  // Has the system hand over all of the memory now, where it otherwise does so page by page at the first touch, which can take
  // milliseconds each. A GPU's memory is there from the start.
  void prefault();

  // Makes the rest of the arena unusable and returns the bytes in use.
  size_t freeze();
  std::byte* data() const { return data_; }
  size_t used() const { return used_; }
  size_t capacity() const { return capacity_; }

 private:
  std::byte* data_ = nullptr;
  size_t capacity_ = 0;
  size_t used_ = 0;
  bool frozen_ = false;
  GpuArena gpu_;  // holds the memory if it is a GPU's
};

}  // namespace perigee::tensor
