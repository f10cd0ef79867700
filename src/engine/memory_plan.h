// What    What a model is going to need, piece by piece, compared with what a device has before any of it is taken.
// Owner   engine.
// Threads Plain data.
// Errors  check() gives one sentence that lists the pieces, their sum, what is free and the way out.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "tensor/tensor.h"

namespace perigee::engine {

class MemoryPlan {
 public:
  // `way_out` says what the user can do about this piece ("lower --max-num-batched-tokens"); it may be empty.
  MemoryPlan& add(const std::string& what, int64_t bytes, const std::string& way_out = "");

  MemoryPlan& add(const MemoryPlan& others);

  int64_t bytes() const;
  // Against the free bytes of `where` ("the GPU", "this machine").
  Status check(int64_t free_bytes, const std::string& where) const;
  // Against what the device has free now.
  Status check(tensor::Device device) const;

 private:
  struct Piece {
    std::string what;
    int64_t bytes;
    std::string way_out;
  };
  std::vector<Piece> pieces_;
};

// What `share` of a device's memory leaves for a cache when `total - free` bytes are in use and `others` are still to be taken.
int64_t cache_budget(int64_t total, int64_t free, double share, int64_t others);

// Of the memory where `device` computes.
int64_t free_memory(tensor::Device device);

}  // namespace perigee::engine
