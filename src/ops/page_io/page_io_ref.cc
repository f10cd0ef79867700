#include <cstring>
#include <vector>

#include "num/record_codec.h"
#include "ops/page_io/page_io.h"

namespace perigee::ops::ref {

void write_latents(const Context&, const Tensor& latent, const Tensor& rope, LatentFormat format,
                   std::span<const PageWrite> writes) {
  const int64_t c = latent.dims[1];
  const int64_t r = rope.dims[1];
  for (const PageWrite& w : writes) {
    for (int64_t i = 0; i < w.rows; ++i) {
      const int64_t position = w.position + i;
      std::byte* record =
          w.pages.page(position) + position % tensor::kPageTokens * latent_bytes(format, c, r);
      const double* a = latent.row<double>(w.row_begin + i);
      const double* b = rope.row<double>(w.row_begin + i);
      if (format == LatentFormat::kF64) {
        std::memcpy(record, a, static_cast<size_t>(8 * c));
        std::memcpy(record + 8 * c, b, static_cast<size_t>(8 * r));
        continue;
      }
      const std::vector<float> values(a, a + c);
      const std::vector<float> extra(b, b + r);
      encode_latent(format, values.data(), c, extra.data(), r, reinterpret_cast<uint8_t*>(record));
    }
  }
}

void write_keys(const Context&, const Tensor& keys, KeyFormat format,
                std::span<const PageWrite> writes) {
  const int64_t j = keys.dims[1];
  for (const PageWrite& w : writes) {
    for (int64_t i = 0; i < w.rows; ++i) {
      const int64_t position = w.position + i;
      const int64_t slot = position % tensor::kPageTokens;
      uint8_t* page = reinterpret_cast<uint8_t*>(w.pages.page(position));
      uint8_t* values = page + key_value_offset(format, j, slot);
      const double* x = keys.row<double>(w.row_begin + i);
      if (format == KeyFormat::kF64) {
        std::memcpy(values, x, static_cast<size_t>(8 * j));
        continue;
      }
      const std::vector<float> key(x, x + j);
      encode_key(format, key.data(), j, values, page + key_scale_offset(format, j, slot));
    }
  }
}

}  // namespace perigee::ops::ref
