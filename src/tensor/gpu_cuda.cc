#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "tensor/gpu.h"
#include "tensor/gpu_fault.h"
#include "tensor/gpu_probe.h"

namespace perigee::tensor {
namespace {

constexpr int kMajorMin = 8;  // compute capability 8.0: BF16 matrix instructions

size_t gpu_aligned(size_t bytes) { return (bytes + kGpuAlignment - 1) / kGpuAlignment * kGpuAlignment; }

double gib(size_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

void must(cudaError_t status, const char* what) {
  if (status != cudaSuccess) gpu_fault(what, cudaGetErrorString(status), cudaGetErrorName(status));
}

// Of destructors: at the end of the process the driver may have gone first, and has taken everything with it.
void let_go(cudaError_t status, const char* what) {
  if (status != cudaErrorCudartUnloading) must(status, what);
}

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

}  // namespace

bool gpu_built() { return true; }

Result<GpuInfo> open_gpu(int index) {
  GpuInfo info;
  must(cudaDriverGetVersion(&info.driver), "asking for the driver's version");
  if (info.driver == 0) return invalid_argument("no NVIDIA driver is installed (libcuda.so.1 is missing); use cpu");
  int count = 0;
  const cudaError_t found = cudaGetDeviceCount(&count);
  if (found == cudaErrorInsufficientDriver) {
    return invalid_argument("the NVIDIA driver supports CUDA {}, this build needs {}; install a newer driver",
                            version_text(info.driver), version_text(CUDART_VERSION));
  }
  if (found == cudaErrorNoDevice || (found == cudaSuccess && count == 0)) {
    return invalid_argument("there is no NVIDIA GPU, or CUDA_VISIBLE_DEVICES hides it; use cpu");
  }
  if (found != cudaSuccess) return invalid_argument("the NVIDIA driver answers: {}", cudaGetErrorString(found));
  if (index < 0 || index >= count) return invalid_argument("GPU {} does not exist; there are {}, counted from 0", index, count);

  cudaDeviceProp properties;
  must(cudaGetDeviceProperties(&properties, index), "asking for the GPU's properties");
  info.index = index;
  info.name = properties.name;
  info.major = properties.major;
  info.minor = properties.minor;
  info.multiprocessors = properties.multiProcessorCount;
  info.cache_bytes = static_cast<size_t>(properties.l2CacheSize);
  info.shared_bytes = properties.sharedMemPerBlockOptin;
  if (info.major < kMajorMin) {
    return invalid_argument("{} has compute capability {}.{}; {}.0 is the least", info.name, info.major, info.minor, kMajorMin);
  }
  cudaError_t opened = cudaSetDevice(index);
  if (opened == cudaSuccess) opened = cudaMemGetInfo(&info.free_bytes, &info.memory_bytes);
  if (opened != cudaSuccess) return invalid_argument("{} cannot be used: {}", info.name, cudaGetErrorString(opened));
  if (!probe_device_code()) {
    return invalid_argument("this build has no code for {} (compute capability {}.{}); add it to PERIGEE_CUDA_ARCHS", info.name,
                            info.major, info.minor);
  }
  return info;
}

Result<GpuArena> GpuArena::create(size_t bytes, const std::string& what) {
  GpuArena arena;
  if (bytes == 0) return arena;
  const size_t wanted = gpu_aligned(bytes);
  size_t free = 0;
  size_t total = 0;
  must(cudaMemGetInfo(&free, &total), "asking for free memory");
  void* data = nullptr;
  const cudaError_t status = wanted > free ? cudaErrorMemoryAllocation : cudaMalloc(&data, wanted);
  if (status != cudaSuccess) {
    (void)cudaGetLastError();  // said here; later checks must not find it again
    return resource_exhausted("{} needs {:.2f} GiB, {:.2f} of {:.2f} GiB are free on the GPU", what, gib(wanted), gib(free),
                              gib(total));
  }
  // Other streams do not wait for the default one, which clears: without waiting here it could clear what they have written.
  must(cudaMemset(data, 0, wanted), "clearing memory");
  must(cudaStreamSynchronize(nullptr), "clearing memory");
  arena.data_ = static_cast<std::byte*>(data);
  arena.capacity_ = wanted;
  return arena;
}

GpuArena::GpuArena(GpuArena&& other) noexcept { *this = std::move(other); }

GpuArena& GpuArena::operator=(GpuArena&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(capacity_, other.capacity_);
  std::swap(used_, other.used_);
  return *this;
}

GpuArena::~GpuArena() {
  if (data_ != nullptr) let_go(cudaFree(data_), "giving memory back");
}

std::byte* GpuArena::allocate(size_t bytes) {
  CHECK_LE(used_ + gpu_aligned(bytes), capacity_);
  std::byte* p = data_ + used_;
  used_ += gpu_aligned(bytes);
  return p;
}

Tensor GpuArena::tensor(DType dtype, std::initializer_list<int64_t> dims) {
  Tensor t = view(nullptr, dtype, dims);
  t.data = allocate(static_cast<size_t>(t.size() * dtype_bytes(dtype)));
  return t;
}

Result<PinnedMemory> PinnedMemory::create(size_t bytes, const std::string& what) {
  PinnedMemory memory;
  if (bytes == 0) return memory;
  void* data = nullptr;
  if (cudaHostAlloc(&data, bytes, cudaHostAllocDefault) != cudaSuccess) {
    (void)cudaGetLastError();
    return resource_exhausted("{} needs {:.2f} GiB of pinned host memory, which the system refused", what, gib(bytes));
  }
  memory.data_ = static_cast<std::byte*>(data);
  memory.bytes_ = bytes;
  return memory;
}

PinnedMemory::PinnedMemory(PinnedMemory&& other) noexcept { *this = std::move(other); }

PinnedMemory& PinnedMemory::operator=(PinnedMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

PinnedMemory::~PinnedMemory() {
  if (data_ != nullptr) let_go(cudaFreeHost(data_), "giving pinned memory back");
}

Result<GpuStream> GpuStream::create() {
  GpuStream stream;
  cudaStream_t handle = nullptr;
  const cudaError_t status = cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking);
  if (status != cudaSuccess) return resource_exhausted("the GPU refuses a stream: {}", cudaGetErrorString(status));
  stream.handle_ = handle;
  return stream;
}

GpuStream::GpuStream(GpuStream&& other) noexcept { *this = std::move(other); }

GpuStream& GpuStream::operator=(GpuStream&& other) noexcept {
  std::swap(handle_, other.handle_);
  return *this;
}

GpuStream::~GpuStream() {
  if (handle_ != nullptr) let_go(cudaStreamDestroy(static_cast<cudaStream_t>(handle_)), "ending a stream");
}

void GpuStream::to_gpu(void* to, const void* from, size_t bytes) {
  must(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, static_cast<cudaStream_t>(handle_)), "a copy to the GPU");
}

void GpuStream::to_host(void* to, const void* from, size_t bytes) {
  must(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, static_cast<cudaStream_t>(handle_)), "a copy to the host");
}

void GpuStream::fill_zero(void* to, size_t bytes) {
  must(cudaMemsetAsync(to, 0, bytes, static_cast<cudaStream_t>(handle_)), "clearing memory");
}

void GpuStream::wait(const char* what) { must(cudaStreamSynchronize(static_cast<cudaStream_t>(handle_)), what); }

GpuGraph GpuGraph::record(void* stream, const std::function<void()>& work) {
  const auto at = static_cast<cudaStream_t>(stream);
  must(cudaStreamBeginCapture(at, cudaStreamCaptureModeThreadLocal), "recording a graph");
  work();
  cudaGraph_t graph = nullptr;
  must(cudaStreamEndCapture(at, &graph), "recording a graph");
  cudaGraphExec_t ready = nullptr;
  must(cudaGraphInstantiate(&ready, graph, 0), "making a graph ready");
  must(cudaGraphDestroy(graph), "making a graph ready");
  GpuGraph out;
  out.handle_ = ready;
  return out;
}

GpuGraph::GpuGraph(GpuGraph&& other) noexcept { *this = std::move(other); }

GpuGraph& GpuGraph::operator=(GpuGraph&& other) noexcept {
  std::swap(handle_, other.handle_);
  return *this;
}

GpuGraph::~GpuGraph() {
  if (handle_ != nullptr) let_go(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(handle_)), "ending a graph");
}

void GpuGraph::launch(void* stream) const {
  must(cudaGraphLaunch(static_cast<cudaGraphExec_t>(handle_), static_cast<cudaStream_t>(stream)), "launching a graph");
}

void gpu_copy(void* stream, void* to, const void* from, size_t bytes) {
  must(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, static_cast<cudaStream_t>(stream)), "a copy");
}

void gpu_zero(void* stream, void* to, size_t bytes) {
  must(cudaMemsetAsync(to, 0, bytes, static_cast<cudaStream_t>(stream)), "clearing memory");
}

void gpu_wait(void* stream, const char* what) { must(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)), what); }

void wait_for_gpu(const char* what) { must(cudaDeviceSynchronize(), what); }

}  // namespace perigee::tensor
