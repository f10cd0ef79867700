#include "ops/mla/mla.h"

#include <vector>

namespace perigee::ops {
namespace {

// Ascending lists are in range when their ends are.
void check_selection(const Selection& selection, const MlaSequence& s) {
  for (int64_t i = 0; i < s.rows; ++i) {
    const int64_t t = s.row_begin + i;
    const int64_t count = selection.counts.as<int32_t>()[t];
    CHECK(count >= 0 && count <= selection.positions.dims[1]);
    if (count == 0) continue;
    const int32_t* list = selection.positions.row<int32_t>(t);
    CHECK(list[0] >= 0 && list[count - 1] <= s.position + i);
    CHECK_GE(list[count - 1] - list[0] + 1, count);
  }
}

void check(const Context& context, const Tensor& q, LatentFormat format, int64_t latent_width,
           std::span<const MlaSequence> sequences, const Selection* selection, const Tensor& out,
           const Tensor& lse) {
  const tensor::DType act = activation_dtype(context.device);
  const int64_t rows = q.rows();
  const int64_t heads = q.dims[1];
  tensor::expect(q, "q", act, {-1, -1, -1});
  tensor::expect(out, "out", act, {rows, heads, latent_width});
  tensor::expect(lse, "lse", real_dtype(context.device), {rows, heads});
  CHECK_GE(q.dims[2], latent_width);
  const int64_t bytes = latent_bytes(format, latent_width, q.dims[2] - latent_width);
  CHECK_GT(bytes, 0);  // 0: the format cannot hold this width
  if (selection != nullptr) {
    tensor::expect(selection->positions, "positions", tensor::DType::kI32, {rows, -1});
    tensor::expect(selection->counts, "counts", tensor::DType::kI32, {rows});
  }
  for (const MlaSequence& s : sequences) {
    CHECK(s.row_begin >= 0 && s.rows >= 0 && s.row_begin + s.rows <= rows);
    CHECK_GE(s.position, 0);
    CHECK_EQ(s.latents.token_bytes, bytes);
    if (selection != nullptr && context.device != tensor::Device::kCuda) check_selection(*selection, s);
  }
}

}  // namespace

void mla(const Context& context, const Tensor& q, LatentFormat format, int64_t latent_width,
         double scale, const tensor::Parts& parts, const tensor::PagePlace& latents,
         const Selection* selection, const Tensor& workspace, const Tensor& out, const Tensor& lse) {
  std::vector<MlaSequence> sequences;
  for (const tensor::Part& p : parts.host) sequences.push_back({p.row_begin, p.rows, p.position, latents.of(p)});
  if (context.device != tensor::Device::kCuda) {
    return mla(context, q, format, latent_width, scale, sequences, selection, out, lse);
  }
  check(context, q, format, latent_width, sequences, selection, out, lse);
  CHECK(format != LatentFormat::kF64 && kCudaBuilt && parts.device != nullptr);
  if (workspace.data != nullptr) {
    tensor::expect(workspace, "workspace", tensor::DType::kF32, {-1, -1, q.dims[1], latent_width + 2});
  }
  if constexpr (kCudaBuilt) {
    cuda::mla(context, q, format, latent_width, scale, parts, latents, selection, workspace, out, lse);
  }
}

std::array<int64_t, 4> mla_workspace(tensor::Device device, int64_t rows, int64_t heads, int64_t latent_width, int64_t slots_max,
                                     int64_t bytes_max) {
  if constexpr (kCudaBuilt) {
    if (device == tensor::Device::kCuda) return cuda::mla_workspace(rows, heads, latent_width, slots_max, bytes_max);
  }
  return {0, 1, heads, latent_width + 2};
}

void mla(const Context& context, const Tensor& q, LatentFormat format, int64_t latent_width,
         double scale, std::span<const MlaSequence> sequences, const Selection* selection,
         const Tensor& out, const Tensor& lse) {
  check(context, q, format, latent_width, sequences, selection, out, lse);
  switch (context.device) {
    case tensor::Device::kReference:
      return ref::mla(context, q, format, latent_width, scale, sequences, selection, out, lse);
    case tensor::Device::kCpu:
      CHECK(format != LatentFormat::kF64);
      return cpu::mla(context, q, format, latent_width, scale, sequences, selection, out, lse);
    case tensor::Device::kCuda:
      break;
  }
  CHECK(false);
}

}  // namespace perigee::ops
