// What    The forward pass: tokens of several sequences in, final hidden rows out, logits on request.
// Owner   model. The one forward pass that prefill, decode, scoring and training share.
// Threads One step at a time. On a GPU forward() returns before the work is done; what follows in the stream sees its results.
// Errors  create() returns a Result when memory is refused; a bad step is a bug.
// Source  Block attention residuals, KDA, gated MLA and latent experts as in the Kimi K3 release; docs/numerics.md.
#pragma once

#include <map>
#include <memory>

#include "model/layers.h"
#include "model/step.h"
#include "model/step_tables.h"
#include "model/weights.h"
#include "model/workspace.h"

namespace perigee::model {

class Decoder {
 public:
  // `weights` must outlive the decoder. `rows_max` bounds the tokens of a step, `context_max` their positions.
  static Result<std::unique_ptr<Decoder>> create(const ops::Context& context, const Config& config,
                                                 const Weights& weights, int64_t rows_max,
                                                 int64_t context_max);

  // Runs the step, advances its sequences and returns the normed final rows [T, D], valid until the next call.
  Tensor forward(const Step& step);

  // Logits [R, O] of hidden rows [R, D], written to `out` (real).
  void logits(const Tensor& hidden, const Tensor& out) const;

  // Looks inside following passes; empty functions are not called.
  void set_taps(Taps taps) { taps_ = std::move(taps); }

  // On a GPU, whether steps of one token a sequence are recorded once per size and launched as a whole (the default). The bits
  // are the same.
  void use_graphs(bool use) { graphs_wanted_ = use; }

  const Config& config() const { return config_; }
  const ops::Context& context() const { return context_; }
  size_t workspace_bytes() const { return workspace_.arena.capacity(); }

 private:
  Decoder(const ops::Context& context, const Config& config, const Weights& weights)
      : context_(context), config_(config), weights_(weights), tables_(context) {}

  void run_layers(const LayerRun& run, const Tensor& ids) const;
  bool launch_graph(const Step& step, const LayerRun& run);

  ops::Context context_;
  const Config& config_;
  const Weights& weights_;
  StepTables tables_;
  Workspace workspace_;
  Taps taps_;
  bool graphs_wanted_ = true;
  int64_t steps_ = 0;  // begun, for the message of a fault
  std::map<int64_t, tensor::GpuGraph> graphs_;  // by rows of the step
  uint64_t graphs_pool_ = 0;                    // the serial of the pool that they read
  const void* graphs_tables_ = nullptr;         // and where the step tables lie
};

}  // namespace perigee::model
