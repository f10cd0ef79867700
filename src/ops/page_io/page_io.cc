#include "ops/page_io/page_io.h"

#include <cstring>
#include <vector>

#include "num/record_codec.h"

namespace perigee::ops {
namespace {

void check_writes(const Tensor& rows, int64_t token_bytes, std::span<const PageWrite> writes) {
  CHECK_GT(token_bytes, 0);  // 0: the format cannot hold this width
  for (const PageWrite& w : writes) {
    CHECK(w.row_begin >= 0 && w.rows >= 0 && w.row_begin + w.rows <= rows.rows());
    CHECK_GE(w.position, 0);
    CHECK_EQ(w.pages.token_bytes, token_bytes);
    CHECK_EQ(w.pages.block_tokens % tensor::kPageTokens, 0);
  }
}

const uint8_t* bytes_of(const tensor::PageView& pages, int64_t position) {
  return reinterpret_cast<const uint8_t*>(pages.page(position));
}

}  // namespace

void write_latents(const Context& context, const Tensor& latent, const Tensor& rope,
                   LatentFormat format, std::span<const PageWrite> writes) {
  const tensor::DType act = activation_dtype(context.device);
  tensor::expect(latent, "latent", act, {-1, -1});
  tensor::expect(rope, "rope", act, {latent.rows(), -1});
  check_writes(latent, latent_bytes(format, latent.dims[1], rope.dims[1]), writes);
  switch (context.device) {
    case tensor::Device::kReference:
      return ref::write_latents(context, latent, rope, format, writes);
    case tensor::Device::kCpu:
      CHECK(format != LatentFormat::kF64);
      return cpu::write_latents(context, latent, rope, format, writes);
    case tensor::Device::kCuda:
      break;
  }
  CHECK(false);
}

void write_keys(const Context& context, const Tensor& keys, KeyFormat format,
                std::span<const PageWrite> writes) {
  tensor::expect(keys, "keys", activation_dtype(context.device), {-1, -1});
  check_writes(keys, key_bytes(format, keys.dims[1]), writes);
  switch (context.device) {
    case tensor::Device::kReference:
      return ref::write_keys(context, keys, format, writes);
    case tensor::Device::kCpu:
      CHECK(format != KeyFormat::kF64);
      return cpu::write_keys(context, keys, format, writes);
    case tensor::Device::kCuda:
      break;
  }
  CHECK(false);
}

namespace {

std::vector<PageWrite> host_writes(const tensor::Parts& parts, const tensor::PagePlace& pages) {
  std::vector<PageWrite> out;
  for (const tensor::Part& p : parts.host) out.push_back({p.row_begin, p.rows, p.position, pages.of(p)});
  return out;
}

}  // namespace

void write_latents(const Context& context, const Tensor& latent, const Tensor& rope, LatentFormat format,
                   const tensor::Parts& parts, const tensor::PagePlace& pages) {
  const std::vector<PageWrite> writes = host_writes(parts, pages);
  if (context.device != tensor::Device::kCuda) return write_latents(context, latent, rope, format, writes);
  tensor::expect(latent, "latent", tensor::DType::kBF16, {-1, -1});
  tensor::expect(rope, "rope", tensor::DType::kBF16, {latent.rows(), -1});
  check_writes(latent, latent_bytes(format, latent.dims[1], rope.dims[1]), writes);
  CHECK(format != LatentFormat::kF64 && kCudaBuilt && parts.device != nullptr);
  if constexpr (kCudaBuilt) cuda::write_latents(context, latent, rope, format, parts, pages);
}

void write_keys(const Context& context, const Tensor& keys, KeyFormat format, const tensor::Parts& parts,
                const tensor::PagePlace& pages) {
  const std::vector<PageWrite> writes = host_writes(parts, pages);
  if (context.device != tensor::Device::kCuda) return write_keys(context, keys, format, writes);
  tensor::expect(keys, "keys", tensor::DType::kBF16, {-1, -1});
  check_writes(keys, key_bytes(format, keys.dims[1]), writes);
  CHECK(format != KeyFormat::kF64 && kCudaBuilt && parts.device != nullptr);
  if constexpr (kCudaBuilt) cuda::write_keys(context, keys, format, parts, pages);
}

void read_latent(LatentFormat format, const tensor::PageView& pages, int64_t position, int64_t c,
                 int64_t r, double* out) {
  const int64_t slot = position % tensor::kPageTokens;
  const uint8_t* record = bytes_of(pages, position) + slot * latent_bytes(format, c, r);
  if (format == LatentFormat::kF64) {
    std::memcpy(out, record, static_cast<size_t>(8 * (c + r)));
    return;
  }
  std::vector<float> values(static_cast<size_t>(c + r));
  decode_latent(format, record, c, r, values.data());
  std::copy(values.begin(), values.end(), out);
}

void read_key(KeyFormat format, const tensor::PageView& pages, int64_t position, int64_t j,
              double* out) {
  const uint8_t* page = bytes_of(pages, position);
  const int64_t slot = position % tensor::kPageTokens;
  const uint8_t* values = page + key_value_offset(format, j, slot);
  const uint8_t* scales = page + key_scale_offset(format, j, slot);
  if (format == KeyFormat::kF64) {
    std::memcpy(out, values, static_cast<size_t>(8 * j));
    return;
  }
  if (format == KeyFormat::kFp8) {
    // The FP32 product of value and scale would round.
    for (int64_t i = 0; i < j; ++i) {
      float scale;
      std::memcpy(&scale, scales + i / kFp8KeyGroup * 4, 4);
      out[i] = static_cast<double>(from_e4m3(values[i])) * scale;
    }
    return;
  }
  std::vector<float> key(static_cast<size_t>(j));
  decode_key(format, values, scales, j, key.data());
  std::copy(key.begin(), key.end(), out);
}

}  // namespace perigee::ops
