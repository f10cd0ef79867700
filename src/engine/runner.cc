#include "engine/runner.h"

#include <algorithm>

namespace perigee::engine {
namespace {

using tensor::Tensor;

constexpr int64_t kRows = 32;  // rows whose logits are held at once

}  // namespace

Result<std::unique_ptr<Runner>> Runner::create(const Engine& engine, const RunnerOptions& options) {
  std::unique_ptr<Runner> runner(new Runner(engine));
  Result<std::unique_ptr<model::StatePool>> pool = engine.make_pool(options.rows, options.slots);
  if (!pool.ok()) return pool.error();
  runner->pool_ = std::move(*pool);
  if (options.prefault) runner->pool_->prefault();
  Result<std::unique_ptr<model::Decoder>> decoder = engine.make_decoder(options.tokens_max, options.context_max);
  if (!decoder.ok()) return decoder.error();
  runner->decoder_ = std::move(*decoder);
  const tensor::DType activation = ops::activation_dtype(engine.context().device);
  const model::Config& c = engine.config();
  const int64_t bytes = kRows * c.hidden * tensor::dtype_bytes(activation);
  Result<tensor::Arena> arena = tensor::Arena::create(static_cast<size_t>(bytes) + tensor::kAlignment,
                                                      "hidden rows", engine.context().device);
  if (!arena.ok()) return arena.error();
  runner->arena_ = std::move(*arena);
  runner->picked_ = runner->arena_.tensor(activation, {kRows, c.hidden});
  Result<LogitRows> logits = LogitRows::create(engine.context(), kRows, c.vocab);
  if (!logits.ok()) return logits.error();
  runner->logits_ = std::move(*logits);
  return runner;
}

void Runner::on_layer(std::function<void()> callback) {
  model::Taps taps;
  taps.after_layer = [callback = std::move(callback)](int64_t, const Tensor&) { callback(); };
  decoder_->set_taps(std::move(taps));
}

void Runner::run(const sched::StepPlan& plan, const sched::Scheduler& scheduler) {
  for (const sched::RowId row : plan.clear) pool_->clear_states(row);
  for (const sched::RowCopy& copy : plan.copies_before) {
    if (copy.tokens > 0) {
      pool_->copy_tokens(copy.from, copy.to, copy.tokens);
    } else {
      pool_->copy_states(copy.from, copy.to);
    }
  }
  sequences_.clear();
  for (const sched::PlanPart& p : plan.parts) {
    sequences_.push_back(pool_->bind(scheduler.blocks(p.request), scheduler.states(p.request), p.slot, p.position));
  }
  model::Step step;
  for (size_t i = 0; i < plan.parts.size(); ++i) {
    const sched::PlanPart& p = plan.parts[i];
    step.append(&sequences_[i], scheduler.ids(p.request).subspan(static_cast<size_t>(p.position), static_cast<size_t>(p.tokens)));
  }
  hidden_ = decoder_->forward(step);
  for (const sched::RowCopy& copy : plan.snapshots) pool_->copy_states(copy.from, copy.to);
}

void Runner::logits_of(std::span<const int64_t> rows) {
  const size_t bytes = static_cast<size_t>(hidden_.row_size() * tensor::dtype_bytes(hidden_.dtype));
  for (size_t i = 0; i < rows.size(); ++i) {
    engine_.context().mover().copy(picked_.slice(static_cast<int64_t>(i), 1).data, hidden_.slice(rows[i], 1).data, bytes);
  }
  logits_.compute(*decoder_, picked_.slice(0, static_cast<int64_t>(rows.size())));
  logits_.normalize();
}

TokenLogprob Runner::read(int64_t row, int32_t id, int64_t top) const {
  TokenLogprob out;
  out.id = id;
  out.logprob = logits_.log_probability(row, id);
  out.model_logprob = out.logprob;
  out.top = logits_.best(row, std::min(top, engine_.config().vocab));
  return out;
}

std::vector<TokenLogprob> Runner::draw(std::span<const Draw> draws) {
  std::vector<TokenLogprob> out;
  while (!draws.empty()) {
    const std::span<const Draw> now = draws.first(std::min<size_t>(draws.size(), kRows));
    draws = draws.subspan(now.size());
    std::vector<int64_t> rows;
    for (const Draw& d : now) rows.push_back(d.row);
    logits_of(rows);
    // Alternatives and log-probabilities are the model's own: they are read before anything changes the row.
    const auto count = static_cast<int64_t>(now.size());
    std::vector<TokenLogprob> own(now.size());
    std::vector<std::vector<double>> unedited(now.size());
    std::vector<ops::SampleParams> params;
    for (int64_t i = 0; i < count; ++i) {
      const Draw& d = now[static_cast<size_t>(i)];
      const TokenSampling& s = d.request->sampling;
      if (d.request->top_logprobs > 0) own[static_cast<size_t>(i)] = read(i, 0, d.request->top_logprobs);
      params.push_back({s.temperature, s.top_p, s.min_p, s.top_k, s.seed, d.position, s.choice});
      if (d.editor->idle()) continue;
      std::vector<double>& kept = unedited[static_cast<size_t>(i)];
      for (int64_t id = 0; id < engine_.config().vocab; ++id) kept.push_back(logits_.log_probability(i, id));
      d.editor->edit(logits_.row(i), d.made);
    }
    const std::span<const ops::Sampled> sampled = logits_.draw(params);
    for (size_t i = 0; i < now.size(); ++i) {
      TokenLogprob& token = own[i];
      token.id = sampled[i].id;
      const bool edited = !unedited[i].empty();
      token.model_logprob = edited ? unedited[i][static_cast<size_t>(token.id)] : sampled[i].logprob;
      token.logprob = now[i].request->processed_logprobs ? sampled[i].processed_logprob : token.model_logprob;
      now[i].editor->accept(token.id);
      out.push_back(std::move(token));
    }
  }
  return out;
}

std::vector<TokenLogprob> Runner::score(int64_t first_row, std::span<const int32_t> targets, int64_t top) {
  std::vector<TokenLogprob> out;
  for (size_t done = 0; done < targets.size(); done += kRows) {
    const size_t count = std::min<size_t>(kRows, targets.size() - done);
    std::vector<int64_t> rows;
    for (size_t i = 0; i < count; ++i) rows.push_back(first_row + static_cast<int64_t>(done + i));
    logits_of(rows);
    for (size_t i = 0; i < count; ++i) out.push_back(read(static_cast<int64_t>(i), targets[done + i], top));
  }
  return out;
}

}  // namespace perigee::engine
