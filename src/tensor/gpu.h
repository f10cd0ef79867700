// What    The GPU as the host sees it: found and checked before anything is allocated, then its memory and its streams.
// Owner   tensor. Implemented by gpu_cuda.cc, or by gpu_none.cc in builds without CUDA.
// Threads A GpuStream is used by one thread at a time; everything else from any thread.
// Errors  open_gpu() and create() return one sentence that names what is missing (driver, GPU, code for it, memory) and the way
//         out. What fails after that is a fault of the machine or of ours and ends the process (gpu_fault.h).
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "base/result.h"
#include "tensor/tensor.h"

namespace perigee::tensor {

constexpr size_t kGpuAlignment = 256;  // of every piece of device memory: whole lines of the second-level cache

struct GpuInfo {
  int index = 0;
  std::string name;
  int major = 0;  // compute capability
  int minor = 0;
  int multiprocessors = 0;
  size_t memory_bytes = 0;
  size_t free_bytes = 0;  // when it was opened
  size_t cache_bytes = 0;  // second level
  size_t shared_bytes = 0;  // most that a block may have
  int driver = 0;           // 13000 = the driver supports CUDA 13.0
};

// Whether this build has device code at all.
bool gpu_built();

// Makes GPU `index` that of the calling thread, after checking the driver, the number of GPUs and that this build has code for
// it.
Result<GpuInfo> open_gpu(int index);

// Device memory that hands out aligned pieces, zeroed at first. One allocation, so that nothing is left when it is refused.
class GpuArena {
 public:
  // `what` names the purpose in messages.
  static Result<GpuArena> create(size_t bytes, const std::string& what);
  GpuArena() = default;
  GpuArena(GpuArena&& other) noexcept;
  GpuArena& operator=(GpuArena&& other) noexcept;
  GpuArena(const GpuArena&) = delete;
  GpuArena& operator=(const GpuArena&) = delete;
  ~GpuArena();

  std::byte* allocate(size_t bytes);
  Tensor tensor(DType dtype, std::initializer_list<int64_t> dims);
  std::byte* data() const { return data_; }
  size_t used() const { return used_; }
  size_t capacity() const { return capacity_; }

 private:
  std::byte* data_ = nullptr;
  size_t capacity_ = 0;
  size_t used_ = 0;
};

// Host memory that the GPU reads and writes by itself, at an address that stays.
class PinnedMemory {
 public:
  static Result<PinnedMemory> create(size_t bytes, const std::string& what);
  PinnedMemory() = default;
  PinnedMemory(PinnedMemory&& other) noexcept;
  PinnedMemory& operator=(PinnedMemory&& other) noexcept;
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  ~PinnedMemory();

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

// Work of a GPU in order.
class GpuStream {
 public:
  static Result<GpuStream> create();
  GpuStream() = default;
  GpuStream(GpuStream&& other) noexcept;
  GpuStream& operator=(GpuStream&& other) noexcept;
  GpuStream(const GpuStream&) = delete;
  GpuStream& operator=(const GpuStream&) = delete;
  ~GpuStream();

  // The copy happens when the stream comes to it; host memory that is not pinned is read before the call returns.
  void to_gpu(void* to, const void* from, size_t bytes);
  void to_host(void* to, const void* from, size_t bytes);
  void fill_zero(void* to, size_t bytes);
  // Waits for everything so far. `what` is named if some of it failed.
  void wait(const char* what);

  void* handle() const { return handle_; }  // a cudaStream_t

 private:
  void* handle_ = nullptr;
};

// Work recorded once and launched as a whole many times.
class GpuGraph {
 public:
  // Records what `work` gives to the stream, which runs none of it.
  static GpuGraph record(void* stream, const std::function<void()>& work);
  GpuGraph() = default;
  GpuGraph(GpuGraph&& other) noexcept;
  GpuGraph& operator=(GpuGraph&& other) noexcept;
  GpuGraph(const GpuGraph&) = delete;
  GpuGraph& operator=(const GpuGraph&) = delete;
  ~GpuGraph();

  bool empty() const { return handle_ == nullptr; }
  void launch(void* stream) const;

 private:
  void* handle_ = nullptr;  // a cudaGraphExec_t
};

// The same on a stream that somebody else owns, between any two places.
void gpu_copy(void* stream, void* to, const void* from, size_t bytes);
void gpu_zero(void* stream, void* to, size_t bytes);
void gpu_wait(void* stream, const char* what);

// Waits for all streams; `what` is named if something failed.
void wait_for_gpu(const char* what);

}  // namespace perigee::tensor
