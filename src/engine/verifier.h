// What    Chooses a share of the finished requests and says with what request their log-probabilities can be had again.
// Owner   engine/service.
// Threads One.
// Errors  None: other bits are counted.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "engine/backend.h"

namespace perigee::engine {

class Verifier {
 public:
  // fraction: of all finished requests, 0 to 1. max_model_len: tokens that a request may have.
  Verifier(double fraction, int64_t max_model_len) : fraction_(fraction), max_model_len_(max_model_len) {}

  // A finished request: its log-probabilities are those of `made` in the unmodified distribution.
  void offer(const std::vector<int32_t>& prompt, const std::vector<int32_t>& made, std::vector<double> logprobs);
  bool idle() const { return waiting_.empty(); }
  // A request that scores the next one from its first token on; none if it leaves no room for the one token that a request
  // must generate.
  std::optional<TokenRequest> next();
  // What came of it. `prompt` as in TokenUpdate.
  void check(const std::vector<std::optional<TokenLogprob>>& prompt);

  uint64_t verified() const { return verified_; }
  uint64_t mismatches() const { return mismatches_; }

 private:
  struct Finished {
    std::vector<int32_t> ids;
    size_t prompt = 0;  // tokens of it
    std::vector<double> logprobs;
  };

  double fraction_;
  int64_t max_model_len_;
  double due_ = 0;
  std::deque<Finished> waiting_;
  Finished now_;
  uint64_t verified_ = 0;
  uint64_t mismatches_ = 0;
};

}  // namespace perigee::engine
