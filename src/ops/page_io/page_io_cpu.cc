#include <algorithm>
#include <vector>

#include "ops/page_io/page_io.h"
#include "ops/page_io/page_io_simd.h"

namespace perigee::ops::cpu {
namespace {

// Calls f(row, position, pages) for every row of every write, all rows of all writes in one
// parallel loop.
template <class F>
void for_each_row(const Context& context, std::span<const PageWrite> writes, F&& f) {
  std::vector<int64_t> begin = {0};  // rows before each write
  for (const PageWrite& w : writes) begin.push_back(begin.back() + w.rows);
  context.pool->parallel_for(begin.back(), [&](int64_t first, int64_t last) {
    size_t k = static_cast<size_t>(std::upper_bound(begin.begin(), begin.end(), first) -
                                   begin.begin() - 1);
    for (int64_t i = first; i < last; ++i) {
      while (i >= begin[k + 1]) ++k;
      const PageWrite& w = writes[k];
      const int64_t inside = i - begin[k];
      f(w.row_begin + inside, w.position + inside, w.pages);
    }
  });
}

}  // namespace

void write_latents(const Context& context, const Tensor& latent, const Tensor& rope,
                   LatentFormat format, std::span<const PageWrite> writes) {
  const int64_t c = latent.dims[1];
  const int64_t r = rope.dims[1];
  const int64_t bytes = latent_bytes(format, c, r);
  const bf16* latents = latent.as<bf16>();
  const bf16* extras = rope.as<bf16>();
  with_isa(context.isa, [&]<Isa isa>() {
    for_each_row(context, writes,
                 [&](int64_t row, int64_t position, const tensor::PageView& pages) {
                   uint8_t* page = reinterpret_cast<uint8_t*>(pages.page(position));
                   encode_latent_row<isa>(format, latents + row * latent.row_stride, c,
                                          extras + row * rope.row_stride, r,
                                          page + position % tensor::kPageTokens * bytes);
                 });
  });
}

void write_keys(const Context& context, const Tensor& keys, KeyFormat format,
                std::span<const PageWrite> writes) {
  const int64_t j = keys.dims[1];
  const bf16* data = keys.as<bf16>();
  with_isa(context.isa, [&]<Isa isa>() {
    for_each_row(context, writes,
                 [&](int64_t row, int64_t position, const tensor::PageView& pages) {
                   uint8_t* page = reinterpret_cast<uint8_t*>(pages.page(position));
                   const int64_t slot = position % tensor::kPageTokens;
                   encode_key_row<isa>(format, data + row * keys.row_stride, j,
                                       page + key_value_offset(format, j, slot),
                                       page + key_scale_offset(format, j, slot));
                 });
  });
}

}  // namespace perigee::ops::cpu
