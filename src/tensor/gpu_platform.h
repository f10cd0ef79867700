// What    The GPU's runtime under CUDA's names: CUDA itself, or HIP where hipcc compiles.
// Owner   tensor. Included by GPU sources and by what launches them.
// Threads As the runtime.
// Errors  As the runtime.
// Tests   tools/hip_check.sh compiles every GPU source with hipcc.
#pragma once

#if defined(__HIP_PLATFORM_AMD__)

#include <hip/hip_fp16.h>
#include <hip/hip_runtime.h>

namespace perigee {

using cudaError_t = hipError_t;
using cudaFuncAttribute = hipFuncAttribute;
using cudaFuncAttributes = hipFuncAttributes;
using cudaStream_t = hipStream_t;

constexpr cudaError_t cudaSuccess = hipSuccess;
constexpr cudaFuncAttribute cudaFuncAttributeMaxDynamicSharedMemorySize = hipFuncAttributeMaxDynamicSharedMemorySize;

inline cudaError_t cudaGetLastError() { return hipGetLastError(); }
inline const char* cudaGetErrorName(cudaError_t status) { return hipGetErrorName(status); }
inline const char* cudaGetErrorString(cudaError_t status) { return hipGetErrorString(status); }

inline cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  return hipFuncSetAttribute(kernel, attribute, value);
}

template <class Kernel>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, Kernel* kernel) {
  return hipFuncGetAttributes(attributes, reinterpret_cast<const void*>(kernel));
}

}  // namespace perigee

#else

#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#endif
