// What    How a GPU that fails ends the process: at once, with the operation, the step and the reason on stderr.
// Owner   tensor.
// Threads Any.
// Errors  Ends the process with status 1: after a fault the device's memory means nothing, so nothing is saved from it.
//
// Launches fail where they stand; a kernel that fails later is noticed by the next wait or launch, which names itself.
#pragma once

#include <cstdint>

namespace perigee::tensor {

// The step that is on its way, for the message; -1 between steps.
void set_gpu_step(int64_t step);

// `what` is the operation or the wait that noticed, `reason` and `code` are the driver's words.
[[noreturn]] void gpu_fault(const char* what, const char* reason, const char* code);

}  // namespace perigee::tensor
