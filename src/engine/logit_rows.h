// What    The logits of a few rows: computed where the model runs, read, edited and drawn from on the host.
// Owner   engine.
// Threads One at a time.
// Errors  create() returns a Result when memory is refused.
//
// On a GPU the host has a copy in pinned memory; elsewhere both are the same memory.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "model/decoder.h"
#include "ops/sample/sample.h"
#include "tensor/arena.h"
#include "tensor/gpu.h"

namespace perigee::engine {

class LogitRows {
 public:
  // Room for `rows` rows of `vocab` logits.
  static Result<LogitRows> create(const ops::Context& context, int64_t rows, int64_t vocab);

  size_t bytes() const { return arena_.capacity(); }

  // Logits of hidden rows [R, D]; the R rows replace those before.
  void compute(const model::Decoder& decoder, const tensor::Tensor& hidden);
  // Their normalisers, ln sum exp.
  void normalize();
  // Draws a token from each of the rows, edited or not.
  std::span<const ops::Sampled> draw(std::span<const ops::SampleParams> params);

  tensor::Tensor row(int64_t i) const { return host_logits_.slice(i, 1); }  // [1, O], to be edited
  double normalizer(int64_t i) const;
  // In the device's own precision.
  double log_probability(int64_t i, int64_t id) const;
  // The best `top` ids of a row, best first.
  std::vector<std::pair<int32_t, double>> best(int64_t i, int64_t top) const;

 private:
  ops::Context context_;
  ops::Context host_;  // where logits are read
  tensor::Arena arena_;
  tensor::Arena normalizer_arena_;
  tensor::PinnedMemory mirror_;
  int64_t rows_ = 0;  // in use
  tensor::Tensor logits_, host_logits_, normalizers_;  // [R, O] real, the same, [R] real
  std::vector<ops::Sampled> sampled_;
};

}  // namespace perigee::engine
