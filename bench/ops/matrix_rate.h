// What    A loop of matrix instructions on registers alone: what a GPU's matrix units do at best through the instruction that
//         operations use (ops/gpu_mma.cuh).
// Owner   bench.
// Threads As the context's stream; nothing waits.
// Errors  A launch that fails ends the process.
#pragma once

#include "ops/context.h"

namespace perigee::bench::cuda {

// Starts `rounds` rounds on `multiprocessors` multiprocessors and returns the operations they do; a multiply-add counts as two.
// `sink` is device memory for one number.
double start_matrix_loop(const ops::Context& context, int multiprocessors, int64_t rounds, float* sink);

}  // namespace perigee::bench::cuda
