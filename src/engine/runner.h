// What    Carries out step plans: copies rows, runs the forward pass, draws tokens.
// Owner   engine. Used by engine/service.
// Threads One at a time.
// Errors  create() returns a Result when memory is refused; a plan that names rows or requests that do not exist is a bug.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/backend.h"
#include "engine/engine.h"
#include "engine/logit_rows.h"
#include "engine/logits.h"
#include "sched/scheduler.h"

namespace perigee::engine {

struct RunnerOptions {
  int64_t rows = 0;         // of the pool
  int64_t slots = 0;        // sequences at once
  int64_t tokens_max = 0;   // of a step
  int64_t context_max = 0;  // positions
  bool prefault = false;    // the pool's memory is taken at once
};

// A token to draw from the logits of one row of the step.
struct Draw {
  int64_t row = 0;
  int64_t position = 0;  // of the token to draw
  const TokenRequest* request = nullptr;
  LogitEditor* editor = nullptr;
  std::span<const int32_t> made;  // tokens generated so far
};

class Runner {
 public:
  static Result<std::unique_ptr<Runner>> create(const Engine& engine, const RunnerOptions& options);

  const model::StateLayout& layout() const { return pool_->layout(); }
  size_t bytes() const { return pool_->bytes() + decoder_->workspace_bytes() + logits_.bytes(); }
  // Called during a step as a sign of life (model::Taps::alive).
  void on_layer(std::function<void()> callback);

  // Row `row` of the step belongs to the plan's first part, and so on. Afterwards draw() and score() may be called.
  void run(const sched::StepPlan& plan, const sched::Scheduler& scheduler);
  std::vector<TokenLogprob> draw(std::span<const Draw> draws);
  // Log-probabilities of given next ids: targets[i] follows the token of row first_row + i.
  std::vector<TokenLogprob> score(int64_t first_row, std::span<const int32_t> targets, int64_t top);

 private:
  explicit Runner(const Engine& engine) : engine_(engine) {}

  const Engine& engine_;
  std::unique_ptr<model::StatePool> pool_;
  std::unique_ptr<model::Decoder> decoder_;
  LogitRows logits_;
  model::Tensor hidden_;  // of the last step
  std::vector<model::Sequence> sequences_;
};

}  // namespace perigee::engine
