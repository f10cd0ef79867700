#include "ops/sample/sample.h"

namespace perigee::ops {

using tensor::Device;
using tensor::DType;
using tensor::expect;

void log_sum_exp(const Context& context, const Tensor& logits, const Tensor& out) {
  const DType real = real_dtype(context.device);
  expect(logits, "logits", real, {-1, -1});
  expect(out, "out", real, {logits.dims[0]});
  CHECK_GE(logits.dims[1], 1);
  switch (context.device) {
    case Device::kReference:
      return ref::log_sum_exp(logits, out);
    case Device::kCpu:
      return cpu::log_sum_exp(context, logits, out);
    case Device::kCuda:
      break;
  }
  CHECK(false);
}

void top_logprobs(const Context& context, const Tensor& logits, const Tensor& lse, int64_t n,
                  const Tensor& ids, const Tensor& logprobs) {
  const DType real = real_dtype(context.device);
  expect(logits, "logits", real, {-1, -1});
  expect(lse, "lse", real, {logits.dims[0]});
  CHECK(n >= 0 && n <= logits.dims[1]);
  expect(ids, "ids", DType::kI32, {logits.dims[0], n});
  expect(logprobs, "logprobs", real, {logits.dims[0], n});
  switch (context.device) {
    case Device::kReference:
      return ref::top_logprobs(logits, lse, n, ids, logprobs);
    case Device::kCpu:
      return cpu::top_logprobs(context, logits, lse, n, ids, logprobs);
    case Device::kCuda:
      break;
  }
  CHECK(false);
}

void sample(const Context& context, const Tensor& logits, std::span<const SampleParams> params,
            std::span<Sampled> sampled) {
  expect(logits, "logits", real_dtype(context.device), {-1, -1});
  CHECK_GE(logits.dims[1], 1);
  CHECK_LE(logits.dims[1], int64_t{1} << 31);
  CHECK_EQ(static_cast<int64_t>(params.size()), logits.dims[0]);
  CHECK_EQ(sampled.size(), params.size());
  for (const SampleParams& p : params) {
    CHECK(p.temperature >= 0 && p.min_p >= 0 && p.min_p <= 1 && p.top_p == p.top_p);
    CHECK_GE(p.top_k, 0);
  }
  switch (context.device) {
    case Device::kReference:
      return ref::sample(logits, params, sampled);
    case Device::kCpu:
      return cpu::sample(context, logits, params, sampled);
    case Device::kCuda:
      break;
  }
  CHECK(false);
}

}  // namespace perigee::ops
