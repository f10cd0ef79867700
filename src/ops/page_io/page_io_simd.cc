#include "ops/page_io/page_io_simd.h"

#include "num/record_simd.h"

namespace perigee::ops::cpu {

template <>
void encode_latent_row<Isa::PERIGEE_ISA>(LatentFormat format, const bf16* latent, int64_t c,
                                         const bf16* rope, int64_t r, uint8_t* out) {
  simd::encode_latent(format, latent, c, rope, r, out);
}

template <>
void encode_key_row<Isa::PERIGEE_ISA>(KeyFormat format, const bf16* key, int64_t j, uint8_t* values,
                                      uint8_t* scales) {
  simd::encode_key(format, key, j, values, scales);
}

}  // namespace perigee::ops::cpu
