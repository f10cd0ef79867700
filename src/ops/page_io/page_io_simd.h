// What    Encodes one BF16 row into one cache record.
// Owner   ops/page_io. Compiled once per instruction set.
// Threads Pure functions.
// Errors  None.
#pragma once

#include <cstdint>

#include "num/bf16.h"
#include "num/isa.h"
#include "num/records.h"

namespace perigee::ops::cpu {

template <Isa>
void encode_latent_row(LatentFormat format, const bf16* latent, int64_t c, const bf16* rope,
                       int64_t r, uint8_t* out);
template <Isa>
void encode_key_row(KeyFormat format, const bf16* key, int64_t j, uint8_t* values, uint8_t* scales);

template <>
void encode_latent_row<Isa::kGeneric>(LatentFormat, const bf16*, int64_t, const bf16*, int64_t,
                                      uint8_t*);
template <>
void encode_latent_row<Isa::kAvx2>(LatentFormat, const bf16*, int64_t, const bf16*, int64_t,
                                   uint8_t*);
template <>
void encode_latent_row<Isa::kAvx512>(LatentFormat, const bf16*, int64_t, const bf16*, int64_t,
                                     uint8_t*);
template <>
void encode_key_row<Isa::kGeneric>(KeyFormat, const bf16*, int64_t, uint8_t*, uint8_t*);
template <>
void encode_key_row<Isa::kAvx2>(KeyFormat, const bf16*, int64_t, uint8_t*, uint8_t*);
template <>
void encode_key_row<Isa::kAvx512>(KeyFormat, const bf16*, int64_t, uint8_t*, uint8_t*);

}  // namespace perigee::ops::cpu
