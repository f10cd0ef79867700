#include "engine/logit_rows.h"

#include <algorithm>
#include <cstring>

#include "ops/embed/embed.h"
#include "ops/sample/sample_gpu.h"

namespace perigee::engine {
namespace {

using tensor::DType;
using tensor::Tensor;

constexpr int64_t kHostRows = 32;
constexpr int64_t kGpuRows = 512;
constexpr int64_t kGpuBytes = int64_t{128} << 20;

size_t bytes_of(const Tensor& t) { return static_cast<size_t>(t.size() * tensor::dtype_bytes(t.dtype)); }

double number(const Tensor& t, int64_t row, int64_t column) {
  return t.dtype == DType::kF64 ? t.row<double>(row)[column] : static_cast<double>(t.row<float>(row)[column]);
}

}  // namespace

int64_t LogitRows::rows_for(tensor::Device device, int64_t vocab) {
  if (device != tensor::Device::kCuda) return kHostRows;
  return std::clamp(kGpuBytes / (vocab * int64_t{sizeof(float)}), kHostRows, kGpuRows);
}

Result<LogitRows> LogitRows::create(const ops::Context& context, int64_t rows, int64_t vocab, int64_t hidden) {
  LogitRows out;
  out.context_ = context;
  out.host_ = out.gpu() ? ops::make_context(tensor::Device::kCpu, context.pool) : context;
  if (Status s = out.make_twins(rows, vocab, hidden); !s.ok()) return s.error();
  out.mirrored_.resize(static_cast<size_t>(rows));
  out.edited_.resize(static_cast<size_t>(rows));
  return out;
}

std::vector<LogitRows::Piece> LogitRows::pieces(tensor::Device device, int64_t vocab, int64_t hidden) {
  const DType real = ops::real_dtype(device);
  std::vector<Piece> out = {{&LogitRows::logits_, real, vocab, true},
                            {&LogitRows::normalizers_, real, 1, true},
                            {&LogitRows::picked_, ops::activation_dtype(device), hidden, false}};
  if (device != tensor::Device::kCuda) return out;
  out.push_back({&LogitRows::ids_, DType::kI32, 1, true});
  out.push_back({&LogitRows::values_, DType::kF32, 1, true});
  out.push_back({&LogitRows::keys_, DType::kU8, sizeof(ops::DrawKey), true});
  out.push_back({&LogitRows::drawn_, DType::kU8, sizeof(ops::Drawn), true});
  return out;
}

namespace {

size_t workspace_bytes(tensor::Device device, int64_t rows, int64_t vocab) {
  if constexpr (ops::kCudaBuilt) {
    if (device == tensor::Device::kCuda) {
      return tensor::aligned(static_cast<size_t>(ops::cuda::sample_workspace_bytes(rows, vocab)));
    }
  }
  return 0;
}

size_t piece_bytes(DType dtype, int64_t rows, int64_t width) {
  return tensor::aligned(static_cast<size_t>(rows * width * tensor::dtype_bytes(dtype)));
}

}  // namespace

int64_t LogitRows::bytes_for(tensor::Device device, int64_t rows, int64_t vocab, int64_t hidden) {
  size_t bytes = workspace_bytes(device, rows, vocab);
  for (const Piece& p : pieces(device, vocab, hidden)) bytes += piece_bytes(p.dtype, rows, p.width);
  return static_cast<int64_t>(bytes);
}

Status LogitRows::make_twins(int64_t rows, int64_t vocab, int64_t hidden) {
  const std::vector<Piece> all = pieces(context_.device, vocab, hidden);
  const auto bytes = static_cast<size_t>(bytes_for(context_.device, rows, vocab, hidden));
  Result<tensor::Arena> arena = tensor::Arena::create(bytes, "the logits", context_.device);
  if (!arena.ok()) return arena.error();
  arena_ = std::move(*arena);
  if (gpu()) {
    size_t here = 0;
    for (const Piece& p : all) here += p.host_too ? piece_bytes(p.dtype, rows, p.width) : 0;
    Result<tensor::PinnedMemory> mirror = tensor::PinnedMemory::create(here, "the logits");
    if (!mirror.ok()) return mirror.error();
    mirror_ = std::move(*mirror);
  }
  std::byte* at = mirror_.data();
  for (const Piece& p : all) {
    Twin& twin = this->*p.twin;
    twin.there = twin.here = arena_.tensor(p.dtype, {rows, p.width});
    if (!gpu() || !p.host_too) continue;
    twin.here.data = at;
    at += piece_bytes(p.dtype, rows, p.width);
  }
  if (const size_t workspace = workspace_bytes(context_.device, rows, vocab); workspace > 0) {
    workspace_ = arena_.allocate(workspace);
  }
  return {};
}

// Copies of the first `rows` rows, in the order of the stream.
void LogitRows::bring(const Twin& t, int64_t rows) {
  context_.mover().copy(t.here.data, t.there.data, bytes_of(t.there.slice(0, rows)));
}
void LogitRows::send(const Twin& t, int64_t rows) {
  context_.mover().copy(t.there.data, t.here.data, bytes_of(t.there.slice(0, rows)));
}

// Hidden rows one after the other: a view where they lie so already.
Tensor LogitRows::pick(const Tensor& hidden, std::span<const int64_t> rows) {
  const auto n = static_cast<int64_t>(rows.size());
  bool adjacent = true;
  for (int64_t i = 0; i < n; ++i) adjacent = adjacent && rows[static_cast<size_t>(i)] == rows[0] + i;
  if (adjacent) return hidden.slice(rows[0], n);
  const Tensor out = picked_.there.slice(0, n);
  if (gpu()) {
    for (int64_t i = 0; i < n; ++i) *ids_.here.row<int32_t>(i) = static_cast<int32_t>(rows[static_cast<size_t>(i)]);
    send(ids_, n);
    ops::embed(context_, ids_.there.slice(0, n).reshape({n}), hidden, out);
    context_.mover().wait("gathering rows");  // the ids' memory is used again
    return out;
  }
  for (int64_t i = 0; i < n; ++i) {
    const Tensor from = hidden.slice(rows[static_cast<size_t>(i)], 1);
    std::memcpy(out.slice(i, 1).data, from.data, bytes_of(from));
  }
  return out;
}

void LogitRows::compute(const model::Decoder& decoder, const Tensor& hidden, std::span<const int64_t> rows) {
  rows_ = static_cast<int64_t>(rows.size());
  CHECK(rows_ > 0 && rows_ <= rows_max());
  decoder.logits(pick(hidden, rows), logits_.there.slice(0, rows_));
  normalized_ = false;
  mirrored_.assign(mirrored_.size(), !gpu());
  edited_.assign(edited_.size(), false);
  if constexpr (ops::kCudaBuilt) {
    if (!gpu()) return;
    ops::cuda::log_sum_exp(context_, logits_.there.slice(0, rows_), workspace_,
                           normalizers_.there.slice(0, rows_).reshape({rows_}));
  }
}

void LogitRows::normalize() {
  if (normalized_) return;
  normalized_ = true;
  if (gpu()) {
    bring(normalizers_, rows_);
    context_.mover().wait("reading normalisers");
  } else {
    ops::log_sum_exp(host_, logits_.here.slice(0, rows_), normalizers_.here.slice(0, rows_).reshape({rows_}));
  }
}

Tensor LogitRows::on_host(int64_t i) {
  const Tensor row = logits_.here.slice(i, 1);
  if (!mirrored_[static_cast<size_t>(i)]) {
    context_.mover().copy(row.data, logits_.there.slice(i, 1).data, bytes_of(row));
    context_.mover().wait("reading logits");
    mirrored_[static_cast<size_t>(i)] = true;
  }
  return row;
}

Tensor LogitRows::edit(int64_t i) {
  normalize();
  edited_[static_cast<size_t>(i)] = true;
  return on_host(i);
}

double LogitRows::normalizer(int64_t i) {
  normalize();
  return number(normalizers_.here, i, 0);
}

std::span<const double> LogitRows::log_probabilities(std::span<const int32_t> ids) {
  CHECK_EQ(static_cast<int64_t>(ids.size()), rows_);
  read_.assign(ids.size(), 0);
  if constexpr (ops::kCudaBuilt) {
    if (gpu()) {
      std::copy(ids.begin(), ids.end(), ids_.here.as<int32_t>());
      send(ids_, rows_);
      const auto column = [&](const Twin& t) { return t.there.slice(0, rows_).reshape({rows_}); };
      ops::cuda::token_logprobs(context_, logits_.there.slice(0, rows_), column(normalizers_), column(ids_), column(values_));
      bring(values_, rows_);
      context_.mover().wait("reading log-probabilities");
      for (size_t i = 0; i < ids.size(); ++i) read_[i] = static_cast<double>(values_.here.as<float>()[i]);
      return read_;
    }
  }
  normalize();
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0) continue;
    const auto row = static_cast<int64_t>(i);
    if (logits_.here.dtype == DType::kF64) {
      read_[i] = number(logits_.here, row, ids[i]) - number(normalizers_.here, row, 0);
    } else {
      read_[i] = static_cast<double>(logits_.here.row<float>(row)[ids[i]] - *normalizers_.here.row<float>(row));
    }
  }
  return read_;
}

std::vector<double> LogitRows::log_probabilities_of(int64_t i) {
  normalize();
  const Tensor row = on_host(i);
  std::vector<double> out;
  for (int64_t id = 0; id < row.dims[1]; ++id) {
    if (row.dtype == DType::kF64) {
      out.push_back(number(row, 0, id) - number(normalizers_.here, i, 0));
    } else {
      out.push_back(static_cast<double>(row.row<float>(0)[id] - *normalizers_.here.row<float>(i)));
    }
  }
  return out;
}

std::vector<std::pair<int32_t, double>> LogitRows::best(int64_t i, int64_t top) {
  std::vector<std::pair<int32_t, double>> out;
  if (top <= 0) return out;
  normalize();
  const Tensor row = on_host(i);
  std::vector<int32_t> ids(static_cast<size_t>(top));
  std::vector<double> wide(ids.size());
  std::vector<float> narrow(ids.size());
  const bool f64 = row.dtype == DType::kF64;
  const Tensor probs = f64 ? tensor::view(wide.data(), {1, top}) : tensor::view(narrow.data(), {1, top});
  ops::top_logprobs(host_, row, normalizers_.here.slice(i, 1).reshape({1}), top, tensor::view(ids.data(), {1, top}), probs);
  for (size_t n = 0; n < ids.size(); ++n) out.emplace_back(ids[n], f64 ? wide[n] : static_cast<double>(narrow[n]));
  return out;
}

// Rows that nobody edited and no filter cuts are drawn where they lie; the others by the host.
void LogitRows::draw_there(std::span<const ops::SampleParams> params) {
  if constexpr (ops::kCudaBuilt) {
    auto* const keys = reinterpret_cast<ops::DrawKey*>(keys_.here.data);
    bool any = false;
    for (size_t i = 0; i < params.size(); ++i) {
      const bool whole = !edited_[i] && ops::drawn_whole(params[i], logits_.there.dims[1]);
      keys[i] = whole ? ops::draw_key(params[i]) : ops::DrawKey{};
      any = any || whole;
    }
    if (!any) return;
    send(keys_, rows_);
    ops::cuda::draw(context_, logits_.there.slice(0, rows_), normalizers_.there.slice(0, rows_).reshape({rows_}),
                    reinterpret_cast<const ops::DrawKey*>(keys_.there.data), workspace_,
                    reinterpret_cast<ops::Drawn*>(drawn_.there.data));
    bring(drawn_, rows_);
    context_.mover().wait("drawing tokens");
    const auto* const drawn = reinterpret_cast<const ops::Drawn*>(drawn_.here.data);
    for (size_t i = 0; i < params.size(); ++i) {
      if (keys[i].factor >= 0) sampled_[i] = {drawn[i].id, drawn[i].logprob, drawn[i].processed_logprob};
    }
  }
}

std::span<const ops::Sampled> LogitRows::draw(std::span<const ops::SampleParams> params) {
  CHECK_EQ(static_cast<int64_t>(params.size()), rows_);
  sampled_.resize(params.size());
  if (gpu()) draw_there(params);
  const auto by_host = [&](int64_t i) {
    const auto at = static_cast<size_t>(i);
    return !gpu() || edited_[at] || !ops::drawn_whole(params[at], logits_.here.dims[1]);
  };
  for (int64_t begin = 0, end; begin < rows_; begin = end) {
    for (end = begin; end < rows_ && by_host(end); ++end) on_host(end);
    if (begin == end) {
      ++end;
      continue;
    }
    const auto first = static_cast<size_t>(begin), count = static_cast<size_t>(end - begin);
    ops::sample(host_, logits_.here.slice(begin, end - begin), params.subspan(first, count),
                std::span(sampled_).subspan(first, count));
  }
  return sampled_;
}

}  // namespace perigee::engine
