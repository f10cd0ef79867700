#include "ops/gpu_launch.h"
#include "ops/gpu_records.cuh"
#include "ops/page_io/page_io.h"

namespace perigee::ops::cuda {
namespace {

constexpr int kWarps = 4;  // rows of a block

struct Rows {
  const bf16* data;
  int64_t stride;
};

// Two neighbouring columns a lane; lanes of a group agree on its scale. The loop runs alike for all lanes of the warp.
template <class Encode>
__device__ void each_pair(const bf16* x, int64_t n, Encode encode) {
  const int64_t lane = threadIdx.x % 32;
  for (int64_t first = 0; first < n; first += 64) {
    const int64_t i = first + lane * 2;
    const float even = i < n ? to_float(x[i]) : 0.0f;
    const float odd = i + 1 < n ? to_float(x[i + 1]) : 0.0f;
    encode(i, even, odd);
  }
}

__device__ void copy_values(const bf16* x, int64_t n, uint8_t* out) {
  for (int64_t i = threadIdx.x % 32; i < n; i += 32) {
    const bf16 h = to_bf16(to_float(x[i]));  // NaN becomes quiet
    out[2 * i] = static_cast<uint8_t>(h.bits);
    out[2 * i + 1] = static_cast<uint8_t>(h.bits >> 8);
  }
}

__device__ void e4m3_values(const bf16* x, int64_t n, uint8_t* out) {
  for (int64_t i = threadIdx.x % 32; i < n; i += 32) out[i] = to_e4m3(to_float(x[i]));
}

__device__ void nvfp4_values(const bf16* x, int64_t n, uint8_t* codes, uint8_t* scales) {
  each_pair(x, n, [&](int64_t i, float even, float odd) {
    const float amax = gpu::warp_largest(gpu::larger_magnitude(magnitude(even), magnitude(odd)), kNvfp4Group / 2);
    const uint8_t scale = to_e4m3(amax / kE2m1Max);
    if (i >= n) return;
    codes[i / 2] = gpu::nibbles(even, odd, from_e4m3(scale), scale == 0);
    if (i % kNvfp4Group == 0) scales[i / kNvfp4Group] = scale;
  });
}

__device__ void mxfp4_values(const bf16* x, int64_t n, uint8_t* codes, uint8_t* scales) {
  each_pair(x, n, [&](int64_t i, float even, float odd) {
    const float amax = gpu::warp_largest(gpu::larger_magnitude(magnitude(even), magnitude(odd)), kMxfp4Group / 2);
    const uint8_t scale = mxfp4_scale(amax);
    if (i >= n) return;
    codes[i / 2] = gpu::nibbles(even, odd, from_e8m0(scale), false);
    if (i % kMxfp4Group == 0) scales[i / kMxfp4Group] = scale;
  });
}

__device__ void fp8_key(const bf16* x, int64_t n, uint8_t* values, uint8_t* scales) {
  const int64_t lane = threadIdx.x % 32;
  for (int64_t g = 0; g < n; g += kFp8KeyGroup) {
    const int64_t end = min(n, g + kFp8KeyGroup);
    float amax = 0;
    for (int64_t i = g + lane; i < end; i += 32) amax = gpu::larger_magnitude(amax, magnitude(to_float(x[i])));
    const float scale = fp8_key_scale(gpu::warp_largest(amax, 32));
    if (lane == 0) gpu::put_float(scales + g / kFp8KeyGroup * 4, scale);
    for (int64_t i = g + lane; i < end; i += 32) values[i] = gpu::scaled_e4m3_code(to_float(x[i]), scale);
  }
}

// A warp a row.
__global__ void __launch_bounds__(kWarps * 32)
    latents_kernel(Rows latent, Rows rope, int64_t rows, int64_t c, int64_t r, LatentFormat format, int64_t bytes,
                   const tensor::Part* parts, const int32_t* part_of_row, tensor::PagePlace pages) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (row >= rows) return;
  const gpu::Place place = gpu::place_of(parts, part_of_row, row);
  if (place.part == nullptr) return;
  auto* const page = reinterpret_cast<uint8_t*>(pages.of(*place.part).page(place.position));
  uint8_t* const record = page + place.position % tensor::kPageTokens * bytes;
  const bf16* const x = latent.data + row * latent.stride;
  const bf16* const extra = rope.data + row * rope.stride;
  switch (format) {
    case LatentFormat::kBf16:
      copy_values(x, c, record);
      copy_values(extra, r, record + 2 * c);
      break;
    case LatentFormat::kFp8:
      e4m3_values(x, c, record);
      e4m3_values(extra, r, record + c);
      break;
    case LatentFormat::kNvfp4:
      nvfp4_values(x, c, record, record + c / 2 + r);
      e4m3_values(extra, r, record + c / 2);
      break;
    case LatentFormat::kF64:
      break;
  }
}

__global__ void __launch_bounds__(kWarps * 32)
    keys_kernel(Rows keys, int64_t rows, int64_t j, KeyFormat format, const tensor::Part* parts, const int32_t* part_of_row,
                tensor::PagePlace pages) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (row >= rows) return;
  const gpu::Place place = gpu::place_of(parts, part_of_row, row);
  if (place.part == nullptr) return;
  auto* const page = reinterpret_cast<uint8_t*>(pages.of(*place.part).page(place.position));
  const int64_t slot = place.position % tensor::kPageTokens;
  uint8_t* const values = page + key_value_offset(format, j, slot);
  uint8_t* const scales = page + key_scale_offset(format, j, slot);
  const bf16* const x = keys.data + row * keys.stride;
  switch (format) {
    case KeyFormat::kBf16: copy_values(x, j, values); break;
    case KeyFormat::kFp8: fp8_key(x, j, values, scales); break;
    case KeyFormat::kMxfp4: mxfp4_values(x, j, values, scales); break;
    case KeyFormat::kF64: break;
  }
}

unsigned blocks(int64_t rows) { return static_cast<unsigned>((rows + kWarps - 1) / kWarps); }

}  // namespace

void write_latents(const Context& context, const Tensor& latent, const Tensor& rope, LatentFormat format,
                   const tensor::Parts& parts, const tensor::PagePlace& pages) {
  if (latent.rows() == 0) return;
  const int64_t c = latent.dims[1];
  const int64_t r = rope.dims[1];
  latents_kernel<<<blocks(latent.rows()), kWarps * 32, 0, gpu::stream_of(context)>>>(
      {latent.as<bf16>(), latent.row_stride}, {rope.as<bf16>(), rope.row_stride}, latent.rows(), c, r, format,
      latent_bytes(format, c, r), parts.device, parts.part_of_row, pages);
  gpu::check_launch("write_latents");
}

void write_keys(const Context& context, const Tensor& keys, KeyFormat format, const tensor::Parts& parts,
                const tensor::PagePlace& pages) {
  if (keys.rows() == 0) return;
  keys_kernel<<<blocks(keys.rows()), kWarps * 32, 0, gpu::stream_of(context)>>>(
      {keys.as<bf16>(), keys.row_stride}, keys.rows(), keys.dims[1], format, parts.device, parts.part_of_row, pages);
  gpu::check_launch("write_keys");
}

}  // namespace perigee::ops::cuda
