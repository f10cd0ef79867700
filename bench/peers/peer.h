/* What    How a public kernel is called beside ours: a small C interface of a shared library that is built outside this tree.
 * Owner   bench/peers. Adapters (adapters/) implement it; peers.cc loads them.
 * Threads One.
 * Errors  perigee_peer_open returns a sentence for what the peer cannot run, and null when it can.
 *
 * All memory is the GPU's; matrices are dense and row-major. Weights and cached records come in several copies, one after the other
 * at equal distances, so that neither side finds them in a cache: a run uses copy `turn % copies`.
 *
 * op "mla_dense": sizes sequences b, heads h, context, copies, distance; inputs q [b, h, 576] BF16, a pool of pages [64, 576] BF16, block
 *   table [b, pages of a sequence] I32, lengths [b] I32; output [b, h, 512] BF16: softmax(scale q . latent) over the latents' first 512.
 * op "gemm": sizes t, n, k, copies, distance of copies in bytes; inputs x [t, k] BF16, w [n, k] BF16; output [t, n] BF16 = x w^T.
 */
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct PerigeePeerProblem {
  const char* op;
  const int64_t* sizes;
  const void* const* inputs;
  void* const* outputs;
  void* stream; /* a cudaStream_t; runs may be captured into a graph */
  double scale;
};

const char* perigee_peer_name(void);
const char* perigee_peer_open(const struct PerigeePeerProblem* problem, void** state);
void perigee_peer_run(void* state, int64_t turn);
void perigee_peer_close(void* state);

#ifdef __cplusplus
}
#endif
