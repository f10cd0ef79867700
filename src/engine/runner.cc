#include "engine/runner.h"

#include <algorithm>
#include <numeric>

namespace perigee::engine {

using tensor::Tensor;

Result<std::unique_ptr<Runner>> Runner::create(const Engine& engine, const RunnerOptions& options) {
  std::unique_ptr<Runner> runner(new Runner(engine));
  Result<std::unique_ptr<model::StatePool>> pool = engine.make_pool(options.rows, options.slots);
  if (!pool.ok()) return pool.error();
  runner->pool_ = std::move(*pool);
  if (options.prefault) runner->pool_->prefault();
  Result<std::unique_ptr<model::Decoder>> decoder = engine.make_decoder(options.tokens_max, options.context_max);
  if (!decoder.ok()) return decoder.error();
  runner->decoder_ = std::move(*decoder);
  const model::Config& c = engine.config();
  const int64_t rows = LogitRows::rows_for(engine.context().device, c.vocab);
  Result<LogitRows> logits = LogitRows::create(engine.context(), rows, c.vocab, c.hidden);
  if (!logits.ok()) return logits.error();
  runner->logits_ = std::move(*logits);
  return runner;
}

void Runner::on_layer(std::function<void()> callback) {
  model::Taps taps;
  taps.alive = std::move(callback);
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

std::vector<TokenLogprob> Runner::draw(std::span<const Draw> draws) {
  std::vector<TokenLogprob> out;
  while (!draws.empty()) {
    const std::span<const Draw> now = draws.first(std::min(draws.size(), static_cast<size_t>(logits_.rows_max())));
    draws = draws.subspan(now.size());
    std::vector<int64_t> rows;
    for (const Draw& d : now) rows.push_back(d.row);
    logits_.compute(*decoder_, hidden_, rows);
    // Alternatives and log-probabilities are the model's own: they are read before anything changes the row.
    const auto count = static_cast<int64_t>(now.size());
    std::vector<TokenLogprob> own(now.size());
    std::vector<std::vector<double>> unedited(now.size());
    std::vector<ops::SampleParams> params;
    for (int64_t i = 0; i < count; ++i) {
      const Draw& d = now[static_cast<size_t>(i)];
      const TokenSampling& s = d.request->sampling;
      own[static_cast<size_t>(i)].top = logits_.best(i, std::min(d.request->top_logprobs, engine_.config().vocab));
      params.push_back({s.temperature, s.top_p, s.min_p, s.top_k, s.seed, d.position, s.choice});
      if (d.editor->idle()) continue;
      unedited[static_cast<size_t>(i)] = logits_.log_probabilities_of(i);
      d.editor->edit(logits_.edit(i), d.made);
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
  const auto most = static_cast<size_t>(logits_.rows_max());
  for (size_t done = 0; done < targets.size(); done += most) {
    const std::span<const int32_t> now = targets.subspan(done, std::min(most, targets.size() - done));
    std::vector<int64_t> rows(now.size());
    std::iota(rows.begin(), rows.end(), first_row + static_cast<int64_t>(done));
    logits_.compute(*decoder_, hidden_, rows);
    const std::span<const double> logprobs = logits_.log_probabilities(now);
    for (size_t i = 0; i < now.size(); ++i) {
      TokenLogprob token;
      token.id = now[i];
      token.logprob = token.model_logprob = logprobs[i];
      token.top = logits_.best(static_cast<int64_t>(i), std::min(top, engine_.config().vocab));
      out.push_back(std::move(token));
    }
  }
  return out;
}

}  // namespace perigee::engine
