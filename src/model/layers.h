// What    The sub-layers of a decoder layer, each from the normed input to the sub-layer's output.
// Owner   model; called by decoder.cc alone.
// Threads One step at a time.
// Errors  None: everything was checked when the step was made.
//
// All take the normed input in workspace.normed (rows of the step) and leave their result in `out` [T, D].
#pragma once

#include <functional>

#include "model/config.h"
#include "model/state.h"
#include "model/weights.h"
#include "model/workspace.h"
#include "ops/context.h"
#include "ops/mla/mla.h"

namespace perigee::model {

// Who wants to look inside a forward pass: tests compare with golden traces, training keeps activations.
struct Taps {
  // Nothing more than a sign of life: after every layer, or after a step that a graph ran.
  std::function<void()> alive;
  // After a layer: its 0-based number and the residual accumulator [T, D].
  std::function<void(int64_t layer, const Tensor& live)> after_layer;
  // After an indexer: the MLA layer's number among MLA layers, and what each row of the step attends to.
  std::function<void(int64_t mla_index, const ops::Selection& selection)> selected;
};

struct LayerRun {
  const ops::Context& context;
  const Config& config;
  const tensor::Parts& parts;
  const StatePool& pool;  // of the sequences
  Workspace& workspace;
  int64_t rows;  // T
  const Taps& taps;

  // The rows of this step of a [rows_max, width] buffer.
  Tensor rows_of(const Tensor& buffer) const { return buffer.slice(0, rows); }
};

// Kimi Delta Attention; `index` counts KDA layers only.
void kda_layer(const LayerRun& run, const KdaWeights& weights, int64_t index, const Tensor& out);

// Gated MLA in absorbed form over the cache, dense or over the indexer's selection; `index` counts MLA layers only.
void mla_layer(const LayerRun& run, const MlaWeights& weights, int64_t index, const Tensor& out);

// Gated feed-forward: dense layers and shared experts.
void dense_layer(const LayerRun& run, const DenseWeights& weights, const Tensor& out);

// Mixture of experts (latent when the configuration says so) plus shared experts.
void moe_layer(const LayerRun& run, const MoeWeights& weights, const Tensor& out);

}  // namespace perigee::model
