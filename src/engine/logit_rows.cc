#include "engine/logit_rows.h"

namespace perigee::engine {
namespace {

using tensor::DType;
using tensor::Tensor;

size_t bytes_of(const Tensor& t) { return static_cast<size_t>(t.size() * tensor::dtype_bytes(t.dtype)); }

}  // namespace

Result<LogitRows> LogitRows::create(const ops::Context& context, int64_t rows, int64_t vocab) {
  LogitRows out;
  out.context_ = context;
  const bool gpu = context.device == tensor::Device::kCuda;
  out.host_ = gpu ? ops::make_context(tensor::Device::kCpu, context.pool) : context;
  const DType real = ops::real_dtype(context.device);
  const auto bytes = static_cast<size_t>(rows * vocab * tensor::dtype_bytes(real));
  const auto normalizer_bytes = static_cast<size_t>(rows * tensor::dtype_bytes(real));
  Result<tensor::Arena> arena = tensor::Arena::create(tensor::aligned(bytes), "the logits", context.device);
  if (!arena.ok()) return arena.error();
  out.arena_ = std::move(*arena);
  Result<tensor::Arena> normalizers = tensor::Arena::create(tensor::aligned(normalizer_bytes), "the logits");
  if (!normalizers.ok()) return normalizers.error();
  out.normalizer_arena_ = std::move(*normalizers);
  out.logits_ = out.arena_.tensor(real, {rows, vocab});
  out.normalizers_ = out.normalizer_arena_.tensor(real, {rows});
  out.host_logits_ = out.logits_;
  if (!gpu) return out;
  Result<tensor::PinnedMemory> mirror = tensor::PinnedMemory::create(bytes, "the logits");
  if (!mirror.ok()) return mirror.error();
  out.mirror_ = std::move(*mirror);
  out.host_logits_.data = out.mirror_.data();
  return out;
}

void LogitRows::compute(const model::Decoder& decoder, const Tensor& hidden) {
  rows_ = hidden.rows();
  decoder.logits(hidden, logits_.slice(0, rows_));
  if (context_.device != tensor::Device::kCuda) return;
  context_.mover().copy(host_logits_.data, logits_.data, bytes_of(logits_.slice(0, rows_)));
  context_.mover().wait("reading logits");
}

void LogitRows::normalize() { ops::log_sum_exp(host_, host_logits_.slice(0, rows_), normalizers_.slice(0, rows_)); }

std::span<const ops::Sampled> LogitRows::draw(std::span<const ops::SampleParams> params) {
  CHECK_EQ(static_cast<int64_t>(params.size()), rows_);
  sampled_.resize(params.size());
  ops::sample(host_, host_logits_.slice(0, rows_), params, sampled_);
  return sampled_;
}

double LogitRows::normalizer(int64_t i) const {
  return normalizers_.dtype == DType::kF64 ? *normalizers_.row<double>(i) : *normalizers_.row<float>(i);
}

double LogitRows::log_probability(int64_t i, int64_t id) const {
  if (host_logits_.dtype == DType::kF64) return host_logits_.row<double>(i)[id] - *normalizers_.row<double>(i);
  return host_logits_.row<float>(i)[id] - *normalizers_.row<float>(i);
}

std::vector<std::pair<int32_t, double>> LogitRows::best(int64_t i, int64_t top) const {
  std::vector<std::pair<int32_t, double>> out;
  if (top <= 0) return out;
  std::vector<int32_t> ids(static_cast<size_t>(top));
  std::vector<double> wide(ids.size());
  std::vector<float> narrow(ids.size());
  const bool f64 = host_logits_.dtype == DType::kF64;
  const Tensor probs = f64 ? tensor::view(wide.data(), {1, top}) : tensor::view(narrow.data(), {1, top});
  ops::top_logprobs(host_, row(i), normalizers_.slice(i, 1), top, tensor::view(ids.data(), {1, top}), probs);
  for (size_t n = 0; n < ids.size(); ++n) out.emplace_back(ids[n], f64 ? wide[n] : narrow[n]);
  return out;
}

}  // namespace perigee::engine
