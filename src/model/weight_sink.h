// What    Where packed weights go while a model loads: straight to their place on the host, or through small pieces of pinned
//         memory to the GPU, so that no second copy of the model ever stands in host memory.
// Owner   model; a part of load_weights.
// Threads Any number of Pieces at once, each by one thread.
// Errors  A few MiB of pinned memory that the system refuses are a fault of the machine and abort.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "tensor/gpu.h"

namespace perigee::model {

class WeightSink {
 public:
  explicit WeightSink(tensor::Device device) : device_(device) {}

  // A thread's way to the destination. It belongs to one thread from take() to give().
  class Way {
   public:
    // Where to write the `bytes` bytes that belong to `destination`; close() follows.
    std::byte* open(void* destination, size_t bytes);
    void close();

   private:
    friend class WeightSink;
    // Two buffers: one is filled while the other is on its way.
    struct Buffer {
      tensor::PinnedMemory memory;
      tensor::GpuStream stream;
    };
    tensor::Device device_ = tensor::Device::kCpu;
    Buffer buffers_[2];
    int turn_ = 0;
    void* destination_ = nullptr;
    size_t bytes_ = 0;
  };

  std::unique_ptr<Way> take();
  void give(std::unique_ptr<Way> way);
  // Waits for all copies.
  void finish();

 private:
  tensor::Device device_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Way>> free_;
};

}  // namespace perigee::model
