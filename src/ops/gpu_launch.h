// What    What every GPU operation needs to launch: its stream, and a check that names the operation.
// Owner   ops. Included by *_cuda.cu files only.
// Threads As the context.
// Errors  A launch that fails is a fault of ours or of the machine: the process ends with the operation's name.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>

#include "ops/context.h"

namespace perigee::ops::gpu {

inline cudaStream_t stream_of(const Context& context) { return static_cast<cudaStream_t>(context.stream); }

inline void check_launch(const char* operation) {
  const cudaError_t status = cudaGetLastError();
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "perigee: launching %s failed: %s (%s)\n", operation, cudaGetErrorString(status),
               cudaGetErrorName(status));
  std::abort();
}

// Lets a kernel have this much shared memory in a block.
inline void allow_shared(const void* kernel, size_t bytes, const char* operation) {
  if (bytes <= size_t{48} << 10) return;
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)) == cudaSuccess) return;
  std::fprintf(stderr, "perigee: %s needs %zu bytes of shared memory a block, this GPU refuses\n", operation, bytes);
  std::abort();
}

}  // namespace perigee::ops::gpu
