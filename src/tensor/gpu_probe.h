// What    Whether the device code of this build runs on the current GPU.
// Owner   tensor, for gpu_cuda.cc.
// Threads Any.
// Errors  None.
#pragma once

namespace perigee::tensor {

bool probe_device_code();

}  // namespace perigee::tensor
