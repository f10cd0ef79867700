// What    The logits of a few rows: computed, read and drawn from where the model runs; brought to the host to be edited, ranked
//         or filtered.
// Owner   engine.
// Threads One at a time.
// Errors  create() returns a Result when memory is refused.
//
// On a GPU the host has a mirror in pinned memory that is filled row by row when somebody asks; elsewhere both are the same
// memory. Draws have the same bits on both (ops/sample/sample_gpu.h).
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
  // Rows of `vocab` logits that are held at once on `device`: many where rows are short, bounded memory where they are long.
  static int64_t rows_for(tensor::Device device, int64_t vocab);
  // What create() takes where the model runs.
  static int64_t bytes_for(tensor::Device device, int64_t rows, int64_t vocab, int64_t hidden);
  // Room for `rows` rows of `vocab` logits of hidden rows of `hidden` numbers.
  static Result<LogitRows> create(const ops::Context& context, int64_t rows, int64_t vocab, int64_t hidden);

  int64_t rows_max() const { return logits_.there.dims[0]; }
  size_t bytes() const { return arena_.capacity(); }

  // Logits of these rows of `hidden` [T, D], at most rows_max(); they replace those before.
  void compute(const model::Decoder& decoder, const tensor::Tensor& hidden, std::span<const int64_t> rows);

  // Draws a token from each of the rows, edited or not.
  std::span<const ops::Sampled> draw(std::span<const ops::SampleParams> params);

  // [1, O] in host memory, to be edited.
  tensor::Tensor edit(int64_t i);
  // ln sum exp of a row as it was computed.
  double normalizer(int64_t i);
  // Of one id a row, as the rows were computed, in the device's own precision; ids below 0 ask for none.
  std::span<const double> log_probabilities(std::span<const int32_t> ids);
  // Of every id of a row as it was computed.
  std::vector<double> log_probabilities_of(int64_t i);
  // The best `top` ids of a row, best first.
  std::vector<std::pair<int32_t, double>> best(int64_t i, int64_t top);

 private:
  // One tensor where the model runs and on the host; the same memory unless a GPU runs it.
  struct Twin {
    tensor::Tensor there, here;
  };

  bool gpu() const { return context_.device == tensor::Device::kCuda; }
  // A twin and the width of its rows. With a GPU it has memory of its own on the host, unless nobody reads it there.
  struct Piece {
    Twin LogitRows::*twin;
    tensor::DType dtype;
    int64_t width;
    bool host_too;
  };

  static std::vector<Piece> pieces(tensor::Device device, int64_t vocab, int64_t hidden);
  Status make_twins(int64_t rows, int64_t vocab, int64_t hidden);
  void bring(const Twin& t, int64_t rows);
  void send(const Twin& t, int64_t rows);
  void normalize();
  tensor::Tensor on_host(int64_t i);
  tensor::Tensor pick(const tensor::Tensor& hidden, std::span<const int64_t> rows);
  void draw_there(std::span<const ops::SampleParams> params);

  ops::Context context_;
  ops::Context host_;  // where mirrored logits are read
  tensor::Arena arena_;
  tensor::PinnedMemory mirror_;
  int64_t rows_ = 0;  // in use
  Twin logits_;       // [R, O] real
  Twin normalizers_;  // [R] real
  Twin ids_;          // [R] i32
  Twin values_;       // [R] f32
  Twin keys_;         // [R, sizeof(DrawKey)] bytes
  Twin drawn_;        // [R, sizeof(Drawn)] bytes
  Twin picked_;       // [R, D] hidden rows that do not follow one another
  std::byte* workspace_ = nullptr;  // of draws
  bool normalized_ = false;         // normalizers_.here is filled
  std::vector<bool> mirrored_, edited_;
  std::vector<double> read_;
  std::vector<ops::Sampled> sampled_;
};

}  // namespace perigee::engine
