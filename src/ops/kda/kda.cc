#include "ops/kda/kda.h"

#include <vector>

namespace perigee::ops {
namespace {

using tensor::Device;
using tensor::DType;
using tensor::expect;

constexpr int64_t kDimMax =
    4096;  // one FMA chain over the state's rows stays short enough to be accurate

void check_params(const KdaParams& p) {
  for (const int64_t d : {p.heads, p.key_dim, p.value_dim}) {
    CHECK_GE(d, 1);
    CHECK_LE(d, kDimMax);
  }
  CHECK(!p.lower_bound.has_value() || *p.lower_bound < 0);
}

}  // namespace

int64_t kda_open_bytes(Device device, const KdaParams& params) {
  check_params(params);
  switch (device) {
    case Device::kReference:
      return ref::kda_open_bytes(params);
    case Device::kCpu:
      return cpu::kda_open_bytes(params);
    case Device::kCuda:
      if constexpr (kCudaBuilt) return cuda::kda_open_bytes(params);
      break;
  }
  CHECK(false);
  return 0;
}

namespace {

void check(const Context& context, const KdaInputs& in, const KdaParams& params, std::span<const KdaSequence> sequences,
           const Tensor& out) {
  const DType act = activation_dtype(context.device);
  const int64_t rows = in.q.dims[0];
  check_params(params);
  expect(in.q, "q", act, {-1, params.heads, params.key_dim});
  expect(in.k, "k", act, {rows, params.heads, params.key_dim});
  expect(in.v, "v", act, {rows, params.heads, params.value_dim});
  expect(in.z, "z", act, {rows, params.heads, params.key_dim});
  expect(in.b, "b", act, {rows, params.heads});
  expect(in.a_log, "a_log", DType::kF32, {-1});
  CHECK_GE(in.a_log.dims[0], params.heads);
  expect(in.dt_bias, "dt_bias", DType::kF32, {params.heads * params.key_dim});
  expect(out, "out", real_dtype(context.device), {rows, params.heads, params.value_dim});
  for (const KdaSequence& s : sequences) {
    CHECK(s.row_begin >= 0 && s.rows >= 0 && s.row_begin + s.rows <= rows);
    CHECK_GE(s.position, 0);
    CHECK(s.state != nullptr && s.open != nullptr);
  }
}

}  // namespace

void kda(const Context& context, const KdaInputs& in, const KdaParams& params, const tensor::Parts& parts,
         const tensor::StatePlace& state, const tensor::SlotPlace& open, const Tensor& out) {
  std::vector<KdaSequence> sequences;
  for (const tensor::Part& p : parts.host) {
    sequences.push_back({p.row_begin, p.rows, p.position, state.of(p), open.of(p)});
  }
  if (context.device != Device::kCuda) {
    return kda(context, in.q, in.k, in.v, in.z, in.b, in.a_log, in.dt_bias, params, sequences, out);
  }
  check(context, in, params, sequences, out);
  CHECK(kCudaBuilt && parts.device != nullptr);
  if constexpr (kCudaBuilt) cuda::kda(context, in, params, parts, state, open, out);
}

void kda(const Context& context, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& z,
         const Tensor& b, const Tensor& a_log, const Tensor& dt_bias, const KdaParams& params,
         std::span<const KdaSequence> sequences, const Tensor& out) {
  const KdaInputs in = {q, k, v, z, b, a_log, dt_bias};
  check(context, in, params, sequences, out);
  switch (context.device) {
    case Device::kReference:
      return ref::kda(in, params, sequences, out);
    case Device::kCpu:
      return cpu::kda(context, in, params, sequences, out);
    case Device::kCuda:
      break;
  }
  CHECK(false);
}

}  // namespace perigee::ops
