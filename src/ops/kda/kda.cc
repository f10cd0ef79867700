#include "ops/kda/kda.h"

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
      break;
  }
  CHECK(false);
  return 0;
}

void kda(const Context& context, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& z,
         const Tensor& b, const Tensor& a_log, const Tensor& dt_bias, const KdaParams& params,
         std::span<const KdaSequence> sequences, const Tensor& out) {
  const DType act = activation_dtype(context.device);
  const int64_t rows = q.dims[0];
  check_params(params);
  expect(q, "q", act, {-1, params.heads, params.key_dim});
  expect(k, "k", act, {rows, params.heads, params.key_dim});
  expect(v, "v", act, {rows, params.heads, params.value_dim});
  expect(z, "z", act, {rows, params.heads, params.key_dim});
  expect(b, "b", act, {rows, params.heads});
  expect(a_log, "a_log", DType::kF32, {-1});
  CHECK_GE(a_log.dims[0], params.heads);
  expect(dt_bias, "dt_bias", DType::kF32, {params.heads * params.key_dim});
  expect(out, "out", real_dtype(context.device), {rows, params.heads, params.value_dim});
  for (const KdaSequence& s : sequences) {
    CHECK(s.row_begin >= 0 && s.rows >= 0 && s.row_begin + s.rows <= rows);
    CHECK_GE(s.position, 0);
    CHECK(s.state != nullptr && s.open != nullptr);
  }
  const KdaInputs in = {q, k, v, z, b, a_log, dt_bias};
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
