#include "engine/logit_rows.h"

namespace perigee::engine {
namespace {

using tensor::DType;
using tensor::Tensor;

constexpr size_t kPieces = 3;

size_t bytes_of(const Tensor& t) { return static_cast<size_t>(t.size() * tensor::dtype_bytes(t.dtype)); }

}  // namespace

Result<LogitRows> LogitRows::create(const ops::Context& context, int64_t rows, int64_t vocab) {
  LogitRows out;
  out.context_ = context;
  const DType real = ops::real_dtype(context.device);
  const auto record = static_cast<int64_t>(sizeof(ops::Sampled));
  const int64_t bytes = rows * ((vocab + 1) * tensor::dtype_bytes(real) + record);
  Result<tensor::Arena> arena =
      tensor::Arena::create(static_cast<size_t>(bytes) + kPieces * tensor::kAlignment, "the logits", context.device);
  if (!arena.ok()) return arena.error();
  out.arena_ = std::move(*arena);
  out.logits_ = out.arena_.tensor(real, {rows, vocab});
  out.normalizers_ = out.arena_.tensor(real, {rows});
  out.sampled_ = out.arena_.tensor(DType::kU8, {rows, record});
  out.host_logits_ = out.logits_;
  out.host_normalizers_ = out.normalizers_;
  out.host_sampled_ = out.sampled_;
  if (context.device != tensor::Device::kCuda) return out;
  Result<tensor::PinnedMemory> mirror = tensor::PinnedMemory::create(out.arena_.capacity(), "the logits");
  if (!mirror.ok()) return mirror.error();
  out.mirror_ = std::move(*mirror);
  for (Tensor* t : {&out.host_logits_, &out.host_normalizers_, &out.host_sampled_}) {
    t->data = out.mirror_.data() + (static_cast<std::byte*>(t->data) - out.arena_.data());
  }
  return out;
}

void LogitRows::compute(const model::Decoder& decoder, const Tensor& hidden) {
  rows_ = hidden.rows();
  decoder.logits(hidden, logits_.slice(0, rows_));
}

void LogitRows::normalize() { ops::log_sum_exp(context_, logits_.slice(0, rows_), normalizers_.slice(0, rows_)); }

std::span<const ops::Sampled> LogitRows::draw(std::span<const ops::SampleParams> params) {
  CHECK_EQ(static_cast<int64_t>(params.size()), rows_);
  const Tensor sampled = sampled_.slice(0, rows_);
  ops::sample(context_, logits_.slice(0, rows_), params, sampled);
  if (context_.device == tensor::Device::kCuda) {
    context_.mover().copy(host_sampled_.data, sampled.data, bytes_of(sampled));
    context_.mover().wait("drawing tokens");
  }
  return {static_cast<const ops::Sampled*>(host_sampled_.data), params.size()};
}

void LogitRows::read() {
  if (context_.device != tensor::Device::kCuda) return;
  context_.mover().copy(host_logits_.data, logits_.data, bytes_of(logits_.slice(0, rows_)));
  context_.mover().copy(host_normalizers_.data, normalizers_.data, bytes_of(normalizers_.slice(0, rows_)));
  context_.mover().wait("reading logits");
}

void LogitRows::write(int64_t i) {
  if (context_.device != tensor::Device::kCuda) return;
  const Tensor to = logits_.slice(i, 1);
  context_.mover().copy(to.data, row(i).data, bytes_of(to));
}

double LogitRows::normalizer(int64_t i) const {
  return host_normalizers_.dtype == DType::kF64 ? *host_normalizers_.row<double>(i) : *host_normalizers_.row<float>(i);
}

double LogitRows::log_probability(int64_t i, int64_t id) const {
  if (host_logits_.dtype == DType::kF64) return host_logits_.row<double>(i)[id] - *host_normalizers_.row<double>(i);
  return host_logits_.row<float>(i)[id] - *host_normalizers_.row<float>(i);
}

std::vector<std::pair<int32_t, double>> LogitRows::best(int64_t i, int64_t top) const {
  std::vector<std::pair<int32_t, double>> out;
  if (top <= 0) return out;
  std::vector<int32_t> ids(static_cast<size_t>(top));
  std::vector<double> wide(ids.size());
  std::vector<float> narrow(ids.size());
  const bool f64 = host_logits_.dtype == DType::kF64;
  const Tensor probs = f64 ? tensor::view(wide.data(), {1, top}) : tensor::view(narrow.data(), {1, top});
  // The order is exact and the difference one FP32 operation, so the host gives a GPU's numbers.
  const bool gpu = context_.device == tensor::Device::kCuda;
  const ops::Context host = gpu ? ops::make_context(tensor::Device::kCpu, context_.pool) : context_;
  ops::top_logprobs(host, row(i), host_normalizers_.slice(i, 1), top, tensor::view(ids.data(), {1, top}), probs);
  for (size_t n = 0; n < ids.size(); ++n) out.emplace_back(ids[n], f64 ? wide[n] : narrow[n]);
  return out;
}

}  // namespace perigee::engine
