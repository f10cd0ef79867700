#include "tensor/gpu_platform.h"
#include "tensor/gpu_probe.h"

namespace perigee::tensor {
namespace {

__global__ void probe_kernel(int* out) { *out = 1; }

}  // namespace

bool probe_device_code() {
  cudaFuncAttributes attributes;
  const cudaError_t status = cudaFuncGetAttributes(&attributes, probe_kernel);
  if (status != cudaSuccess) (void)cudaGetLastError();
  return status == cudaSuccess;
}

}  // namespace perigee::tensor
