// What    What a request's own wishes do to a row of logits before a token is drawn: penalties, biases, bans, a constraint.
// Owner   engine.
// Threads One request, one thread at a time.
// Errors  None: ids were checked when the request came.
// Numerics FP32 (double on the reference device), one operation after the other in the order of TokenSampling's members, so that
//         a row's result depends on its logits and the request's own tokens alone.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/backend.h"
#include "tensor/tensor.h"

namespace perigee::engine {

class LogitEditor {
 public:
  // `prompt` counts for the repetition penalty only; it is read in the constructor.
  LogitEditor(const TokenSampling& sampling, std::span<const int32_t> prompt, std::span<const int32_t> stop_ids,
              std::shared_ptr<text::Constraint> constraint);

  // Whether edit() would leave every row as it is.
  bool idle() const { return !active_; }
  // Changes one row of logits in place. `made` tokens were generated so far.
  void edit(const tensor::Tensor& row, std::span<const int32_t> made);
  // Tells of the token that was drawn.
  void accept(int32_t id);

 private:
  template <class Real>
  void edit_row(Real* logits, int64_t vocab, std::span<const int32_t> made);

  double repetition_;
  double presence_;
  double frequency_;
  std::vector<std::pair<int32_t, float>> bias_;
  std::vector<int32_t> allowed_;
  std::vector<std::vector<int32_t>> bad_words_;
  int64_t min_tokens_;
  std::vector<int32_t> stop_ids_;
  std::shared_ptr<text::Constraint> constraint_;
  std::unordered_map<int32_t, int32_t> seen_;  // id -> times generated; 0 for ids of the prompt alone
  std::vector<uint32_t> mask_;
  bool active_;
};

}  // namespace perigee::engine
