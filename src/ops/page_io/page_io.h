// Writes new tokens' latents and index keys into the pages of the cache, in the record format of
// the cache.
//
// Math     record(position + i) = encode(row_begin + i), formats as in num/records.h.
// Shapes   latent [T, C], rope [T, r], keys [T, J], all act (BF16 on kCpu, F64 on kReference);
//          pages: one PageWrite per sequence, rows [row_begin, row_begin + rows) go to positions
//          position, position + 1, ...; its block table must cover them. view.token_bytes =
//          latent_bytes or key_bytes of the format.
// Limits   kNvfp4 needs C % 16 == 0, kMxfp4 needs J % 32 == 0 (their scale groups); kF64 exists on
//          kReference only. Two writes of one call must not touch the same token.
// Units    Bytes.
// Numerics Round to nearest even, saturating; exact in every instruction set; a record is a
//          function of its row alone. Only the bytes of the written records change.
// Cost     T (2 (C + r) + latent_bytes) bytes, T (2 J + key_bytes) bytes; limited by memory.
// Errors   Wrong shapes or formats are bugs and abort.
// Threads  Rows in parallel.
// Source   docs/numerics.md, "Cache formats".
// Tests    page_io_test.cc, num/formats_test.cc.
#pragma once

#include <span>

#include "num/records.h"
#include "ops/context.h"
#include "tensor/parts.h"

namespace perigee::ops {

using tensor::Tensor;

struct PageWrite {
  int64_t row_begin = 0;
  int64_t rows = 0;
  int64_t position = 0;  // of row_begin
  tensor::PageView pages;
};

void write_latents(const Context& context, const Tensor& latent, const Tensor& rope,
                   LatentFormat format, std::span<const PageWrite> writes);
void write_keys(const Context& context, const Tensor& keys, KeyFormat format,
                std::span<const PageWrite> writes);

// The rows of a step, on any device; a layer's pages are the same for all sequences.
void write_latents(const Context& context, const Tensor& latent, const Tensor& rope,
                   LatentFormat format, const tensor::Parts& parts, const tensor::PagePlace& pages);
void write_keys(const Context& context, const Tensor& keys, KeyFormat format,
                const tensor::Parts& parts, const tensor::PagePlace& pages);

// What a reader sees of one token, unrounded: C + r latent values, J key values with their scale.
void read_latent(LatentFormat format, const tensor::PageView& pages, int64_t position, int64_t c,
                 int64_t r, double* out);
void read_key(KeyFormat format, const tensor::PageView& pages, int64_t position, int64_t j,
              double* out);

namespace cuda {
void write_latents(const Context& context, const Tensor& latent, const Tensor& rope,
                   LatentFormat format, const tensor::Parts& parts, const tensor::PagePlace& pages);
void write_keys(const Context& context, const Tensor& keys, KeyFormat format,
                const tensor::Parts& parts, const tensor::PagePlace& pages);
}  // namespace cuda
namespace ref {
void write_latents(const Context& context, const Tensor& latent, const Tensor& rope,
                   LatentFormat format, std::span<const PageWrite> writes);
void write_keys(const Context& context, const Tensor& keys, KeyFormat format,
                std::span<const PageWrite> writes);
}  // namespace ref

namespace cpu {
void write_latents(const Context& context, const Tensor& latent, const Tensor& rope,
                   LatentFormat format, std::span<const PageWrite> writes);
void write_keys(const Context& context, const Tensor& keys, KeyFormat format,
                std::span<const PageWrite> writes);
}  // namespace cpu

}  // namespace perigee::ops
