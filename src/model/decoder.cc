#include "model/decoder.h"

#include <algorithm>

#include "ops/act/act.h"
#include "ops/attn_res/attn_res.h"
#include "ops/embed/embed.h"
#include "ops/gemm/gemm.h"
#include "ops/norm/norm.h"
#include "tensor/gpu_fault.h"

namespace perigee::model {
namespace {

constexpr int64_t kGraphRows = 512;  // a graph for each size up to this

// The residual stream. With block attention residuals, `live` is the accumulator since the last block boundary and the
// bank holds the accumulators of earlier blocks (the first one is the embedding); a sub-layer reads a softmax-weighted
// mix of all of them. Without, it is the plain running sum.
class Residual {
 public:
  Residual(const LayerRun& run, bool mixing) : run_(run), mixing_(mixing) { live_ = buffer(0); }

  const Tensor& live() const { return live_; }

  // What the next sub-layer reads (before its norm). `query` belongs to this sub-layer.
  Tensor read(const Tensor& query) {
    if (!mixing_ || bank_.empty()) return live_;
    std::vector<Tensor> rows = bank_;
    rows.push_back(live_);
    const Tensor mixed = run_.rows_of(run_.workspace.mixed);
    ops::attn_res_mix(run_.context, rows, query, run_.config.norm_eps, mixed);
    return mixed;
  }

  // Starts a block: the accumulator as it stands (before any mix) joins the bank and a new one begins.
  void start_block() {
    bank_.push_back(live_);
    live_ = buffer(bank_.size());
    fresh_ = true;
  }

  // Where a sub-layer may write its output directly: the new accumulator if one has just begun.
  Tensor target() const { return fresh_ ? live_ : run_.rows_of(run_.workspace.delta); }

  void accumulate(const Tensor& delta) {
    if (!fresh_) ops::add(run_.context, live_, delta, live_);
    fresh_ = false;
  }

 private:
  Tensor buffer(size_t i) const { return run_.rows_of(run_.workspace.residual[i]); }

  const LayerRun& run_;
  bool mixing_;
  bool fresh_ = false;
  Tensor live_;
  std::vector<Tensor> bank_;
};

}  // namespace

Result<std::unique_ptr<Decoder>> Decoder::create(const ops::Context& context, const Config& config,
                                                 const Weights& weights, int64_t rows_max,
                                                 int64_t context_max) {
  std::unique_ptr<Decoder> decoder(new Decoder(context, config, weights));
  Result<Workspace> workspace = Workspace::create(config, context.device, rows_max, context_max);
  if (!workspace.ok()) return workspace.error();
  decoder->workspace_ = std::move(*workspace);
  return decoder;
}

Tensor Decoder::forward(const Step& step) {
  const int64_t t = step.rows();
  CHECK(t > 0 && t <= workspace_.rows_max);
  tensor::set_gpu_step(steps_++);
  const Status filled = tables_.fill(step);
  CHECK(filled.ok());
  const LayerRun run = {context_, config_, tables_.parts(), step.parts[0].sequence->pool(), workspace_, t, taps_};
  if (!launch_graph(step, run)) run_layers(run, tables_.ids());
  for (const StepPart& p : step.parts) p.sequence->advance(p.rows);
  return run.rows_of(workspace_.normed);
}

// Steps of one token a sequence come again and again, and a launch costs as much as a small kernel.
bool Decoder::launch_graph(const Step& step, const LayerRun& run) {
  const bool decode = static_cast<int64_t>(step.parts.size()) == run.rows && run.rows <= kGraphRows;
  const bool watched = taps_.after_layer || taps_.selected;
  if (context_.device != tensor::Device::kCuda || !graphs_wanted_ || !decode || watched) return false;
  if (graphs_pool_ != run.pool.serial() || graphs_tables_ != tables_.parts().device) graphs_.clear();
  graphs_pool_ = run.pool.serial();
  graphs_tables_ = tables_.parts().device;
  // The first step of a size runs as it is: it also loads the kernels, which recording must not do.
  const auto [found, first] = graphs_.try_emplace(run.rows);
  if (first) return false;
  if (found->second.empty()) {
    found->second = tensor::GpuGraph::record(context_.stream, [&] { run_layers(run, tables_.ids()); });
  }
  found->second.launch(context_.stream);
  if (taps_.alive) taps_.alive();
  return true;
}

void Decoder::run_layers(const LayerRun& run, const Tensor& ids) const {
  const Tensor normed = run.rows_of(workspace_.normed);
  const bool mixing = config_.attn_res_block > 0;

  Residual residual(run, mixing);
  ops::embed(context_, ids, weights_.embed, residual.live());
  int64_t kda_index = 0;
  int64_t mla_index = 0;
  for (int64_t l = 0; l < config_.layers; ++l) {
    const LayerWeights& w = weights_.layers[static_cast<size_t>(l)];

    ops::rms_norm(context_, residual.read(w.attn_res), w.input_norm, config_.norm_eps, normed);
    if (mixing && l % config_.attn_res_block == 0) residual.start_block();
    const Tensor attended = residual.target();
    if (config_.layer_kind[static_cast<size_t>(l)] == LayerKind::kKda) {
      kda_layer(run, w.kda, kda_index++, attended);
    } else {
      mla_layer(run, w.mla, mla_index++, attended);
    }
    residual.accumulate(attended);

    ops::rms_norm(context_, residual.read(w.mlp_res), w.post_norm, config_.norm_eps, normed);
    const Tensor fed = residual.target();
    if (config_.is_dense(l)) {
      dense_layer(run, w.dense, fed);
    } else {
      moe_layer(run, w.moe, fed);
    }
    residual.accumulate(fed);
    if (taps_.after_layer) taps_.after_layer(l, residual.live());
    if (taps_.alive) taps_.alive();
  }
  ops::rms_norm(context_, residual.read(weights_.final_res), weights_.final_norm, config_.norm_eps, normed);
}

void Decoder::logits(const Tensor& hidden, const Tensor& out) const {
  ops::gemm(context_, hidden, weights_.head, out);
}

}  // namespace perigee::model
