// What    One head of one sequence on raw pointers: chunks of 16 rows, one specialisation per
//         instruction set with equal bits.
// Owner   ops/kda.
// Threads Pure apart from the head's own state, open rows, output and work space.
// Errors  None.
#pragma once

#include <cstdint>

#include "num/bf16.h"
#include "num/isa.h"

namespace perigee::ops {

// Pointers stand at the head's values of the sequence's first row; strides are in elements. `pad`
// widths are rounded up to 16 and the lanes beyond the width are zero.
struct KdaHead {
  const bf16* q;
  const bf16* k;
  const bf16* v;
  const bf16* z;
  const bf16* b;
  int64_t q_stride;
  int64_t k_stride;
  int64_t v_stride;
  int64_t z_stride;
  int64_t b_stride;
  const float* dt_bias;
  float a_log;
  bool bounded;
  float lower_bound;
  float scale;  // K^-1/2
  int64_t rows;
  int64_t position;
  int64_t key_dim;
  int64_t key_pad;
  int64_t value_dim;
  int64_t value_pad;
  float* state;       // [K, V]
  const float* next;  // state of the thread's next head, or null
  float* open_k;      // [16, key_pad]
  float* open_alpha;  // [16, key_pad]
  float* open_u;      // [16, value_pad]
  float* out;
  int64_t out_stride;
  // Work space of the thread.
  float* decayed;   // [16, key_pad]: decay_c(r) of the newest row r
  float* factors;   // [32, key_pad]: k_r D_r and q_r D_r of the new rows, interleaved
  float* decay;     // [key_pad]: D_r
  float* products;  // [32, value_pad]: factors times S
  float* block;     // [K, 16]: one block of columns of S
};

template <Isa>
void kda_head(const KdaHead& h);

template <>
void kda_head<Isa::kGeneric>(const KdaHead& h);
template <>
void kda_head<Isa::kAvx2>(const KdaHead& h);
template <>
void kda_head<Isa::kAvx512>(const KdaHead& h);

}  // namespace perigee::ops
