// What    What every GPU operation needs to launch: its stream, and a check that names the operation.
// Owner   ops. Included by *_cuda.cu files only.
// Threads As the context.
// Errors  A launch that fails is a fault of ours or of the machine and ends the process (tensor/gpu_fault.h).
#pragma once

#include "ops/context.h"
#include "tensor/gpu_fault.h"
#include "tensor/gpu_platform.h"

namespace perigee::ops::gpu {

inline cudaStream_t stream_of(const Context& context) { return static_cast<cudaStream_t>(context.stream); }

inline void check_launch(const char* operation) {
  const cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess) tensor::gpu_fault(operation, cudaGetErrorString(status), cudaGetErrorName(status));
}

// Lets a kernel have this much shared memory in a block.
inline void allow_shared(const void* kernel, size_t bytes, const char* operation) {
  if (bytes <= size_t{48} << 10) return;
  const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (status != cudaSuccess) tensor::gpu_fault(operation, cudaGetErrorString(status), cudaGetErrorName(status));
}

}  // namespace perigee::ops::gpu
