#include "engine/engine.h"

#include <algorithm>
#include <numeric>

#include "engine/logit_rows.h"
#include "engine/memory_plan.h"
#include "model/gpu_limits.h"
#include "model/workspace.h"

namespace perigee::engine {
namespace {

using tensor::Device;
using tensor::Tensor;

constexpr int64_t kBatchedTokensCpu = 512;        // large enough to feed matrix tiles, small enough for the cache
constexpr int64_t kBatchedTokensCuda = 2048;
constexpr int64_t kBatchedTokensReference = 256;

int64_t default_batched_tokens(Device device) {
  switch (device) {
    case Device::kReference: return kBatchedTokensReference;
    case Device::kCpu: return kBatchedTokensCpu;
    case Device::kCuda: return kBatchedTokensCuda;
  }
  CHECK(false);
  return 0;
}

}  // namespace

Result<model::CacheFormats> choose_formats(const model::Config& c, const EngineOptions& o) {
  const bool reference = o.device == Device::kReference;
  const bool indexer = c.index_topk > 0;
  model::CacheFormats f;
  f.latent = o.latent.value_or(reference ? LatentFormat::kF64 : indexer ? LatentFormat::kFp8 : LatentFormat::kBf16);
  f.key = o.key.value_or(reference ? KeyFormat::kF64 : indexer ? KeyFormat::kFp8 : KeyFormat::kBf16);
  if (c.count(model::LayerKind::kMla) > 0 && latent_bytes(f.latent, c.kv_lora, c.qk_rope) == 0) {
    return invalid_argument("--kv-cache-dtype nvfp4 needs a kv_lora_rank that is a multiple of 16, {} has {}",
                            c.path, c.kv_lora);
  }
  if (indexer && key_bytes(f.key, c.index_dim) == 0) {
    return invalid_argument("--index-key-dtype mxfp4 needs an index_head_dim that is a multiple of 32, {} has {}",
                            c.path, c.index_dim);
  }
  return f;
}

const char* format_name(LatentFormat f) {
  switch (f) {
    case LatentFormat::kF64: return "f64";
    case LatentFormat::kBf16: return "bf16";
    case LatentFormat::kFp8: return "fp8";
    case LatentFormat::kNvfp4: return "nvfp4";
  }
  return "";
}

const char* format_name(KeyFormat f) {
  switch (f) {
    case KeyFormat::kF64: return "f64";
    case KeyFormat::kBf16: return "bf16";
    case KeyFormat::kFp8: return "fp8";
    case KeyFormat::kMxfp4: return "mxfp4";
  }
  return "";
}

struct Engine::Run {
  std::unique_ptr<model::StatePool> states;
  std::unique_ptr<model::Decoder> decoder;
  LogitRows logits;
};

Result<std::unique_ptr<Engine>> Engine::open(const EngineOptions& options) {
  std::unique_ptr<Engine> engine(new Engine());
  Result<model::Config> config = model::read_config(options.model);
  if (!config.ok()) return config.error();
  if (options.slice.ranks > 1 || options.slice.layers > 0) {
    if (options.load.source != model::LoadOptions::Source::kDummy) {
      return invalid_argument("a share of {} runs on random weights only (--load-format dummy)", options.model);
    }
    config = model::slice_config(*config, options.slice);
    if (!config.ok()) return config.error();
  }
  engine->config_ = std::move(*config);
  const Result<model::CacheFormats> formats = choose_formats(engine->config_, options);
  if (!formats.ok()) return formats.error();
  engine->formats_ = *formats;
  engine->pool_ = std::make_unique<ThreadPool>(options.threads > 0 ? options.threads : cpu_threads());
  engine->context_ =
      ops::limit_isa(ops::make_context(options.device, engine->pool_.get()), options.isa);
  if (options.device == Device::kCuda) {
    const Result<tensor::GpuInfo> info = tensor::open_gpu(0);
    if (!info.ok()) return info.error();
    Result<tensor::GpuStream> stream = tensor::GpuStream::create();
    if (!stream.ok()) return stream.error();
    engine->stream_ = std::move(*stream);
    engine->context_.stream = engine->stream_.handle();
    if (Status s = model::check_gpu_limits(engine->config_); !s.ok()) return s.error();
  }
  engine->batched_tokens_ = options.batched_tokens > 0 ? options.batched_tokens : default_batched_tokens(options.device);
  if (options.device == Device::kCuda) {
    const int64_t workspace = model::Workspace::bytes(engine->config_, options.device, engine->batched_tokens_, 0);
    const Status fits = MemoryPlan()
                            .add("the weights of " + options.model, model::weight_bytes(engine->config_))
                            .add(fmt::format("the workspace for steps of {} tokens", engine->batched_tokens_), workspace,
                                 "lower --max-num-batched-tokens")
                            .check(options.device);
    if (!fits.ok()) return fits.error();
  }
  Result<model::Weights> weights =
      model::load_weights(engine->context_, engine->config_, options.model, options.load);
  if (!weights.ok()) return weights.error();
  engine->weights_ = std::move(*weights);
  engine->options_ = options;
  engine->options_.load.progress = nullptr;  // it may end with its caller
  engine->memory_.weight_bytes = engine->weights_.bytes;
  return engine;
}

Status Engine::check_ids(std::span<const int32_t> ids, int64_t extra_tokens, const std::string& what) const {
  if (ids.empty()) return invalid_argument("{} is empty, at least one token id is needed", what);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= config_.vocab) {
      return out_of_range("{}: id {} at index {} is outside the model's vocabulary of {}", what, ids[i], i,
                          config_.vocab);
    }
  }
  const auto given = static_cast<int64_t>(ids.size());
  if (extra_tokens > config_.positions_max - given) {
    const int64_t total = given + std::min(extra_tokens, std::numeric_limits<int64_t>::max() - given);
    return out_of_range("{} needs {} positions, the model's context has {} (max_position_embeddings)", what, total,
                        config_.positions_max);
  }
  return {};
}

// Whether what a call needs fits, before any of it is taken.
Status Engine::check_memory(const std::vector<int64_t>& tokens_max, int64_t rows, int64_t longest) const {
  const model::StateLayout layout = model::make_state_layout(config_, context_.device, formats_);
  int64_t cache = static_cast<int64_t>(tokens_max.size()) * layout.slot_bytes;
  for (const int64_t t : tokens_max) cache += cache::rows_of_request(layout.rows, t) * layout.rows.row_bytes;
  const int64_t logit_rows = std::min(rows, LogitRows::rows_for(context_.device, config_.vocab));
  return MemoryPlan()
      .add(fmt::format("the cache of {} sequence(s) of up to {} tokens", tokens_max.size(), longest), cache,
           "ask for fewer or shorter sequences")
      .add(fmt::format("the workspace for steps of {} tokens", rows),
           model::Workspace::bytes(config_, context_.device, rows, longest),
           "lower --max-num-batched-tokens")
      .add("logits", LogitRows::bytes_for(context_.device, logit_rows, config_.vocab, config_.hidden))
      .check(context_.device);
}

Result<std::unique_ptr<Engine::Run>> Engine::start(const std::vector<int64_t>& tokens_max) {
  auto run = std::make_unique<Run>();
  const int64_t total = std::accumulate(tokens_max.begin(), tokens_max.end(), int64_t{0});
  const int64_t longest = *std::max_element(tokens_max.begin(), tokens_max.end());
  const int64_t rows = std::max<int64_t>(std::min(batched_tokens_, total), 1);
  if (Status s = check_memory(tokens_max, rows, longest); !s.ok()) return s.error();
  Result<std::unique_ptr<model::StatePool>> states =
      model::StatePool::for_lengths(config_, context_.mover(), formats_, tokens_max);
  if (!states.ok()) return states.error();
  run->states = std::move(*states);
  Result<std::unique_ptr<model::Decoder>> decoder =
      model::Decoder::create(context_, config_, weights_, rows, longest);
  if (!decoder.ok()) return decoder.error();
  run->decoder = std::move(*decoder);
  const int64_t logit_rows = std::min(rows, LogitRows::rows_for(context_.device, config_.vocab));
  Result<LogitRows> logits = LogitRows::create(context_, logit_rows, config_.vocab, config_.hidden);
  if (!logits.ok()) return logits.error();
  run->logits = std::move(*logits);
  memory_.cache_bytes = run->states->bytes();
  memory_.workspace_bytes = run->decoder->workspace_bytes() + run->logits.bytes();
  return run;
}

namespace {

// The next step over sequences that still have ids to process: the budget is shared out evenly, so that no sequence
// waits for another. Returns per part the sequence's index.
std::vector<size_t> fill_step(const std::vector<std::vector<int32_t>>& ids, model::StatePool& states,
                              int64_t budget, model::Step& step) {
  std::vector<size_t> active;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (states.sequence(i).length() < static_cast<int64_t>(ids[i].size())) active.push_back(i);
  }
  std::vector<size_t> chosen;
  for (size_t n = 0; n < active.size() && budget > 0; ++n) {
    const size_t i = active[n];
    model::Sequence& sequence = states.sequence(i);
    const int64_t left = static_cast<int64_t>(ids[i].size()) - sequence.length();
    const int64_t share = std::max<int64_t>(budget / static_cast<int64_t>(active.size() - n), 1);
    const int64_t take = std::min(left, share);
    step.append(&sequence, std::span(ids[i]).subspan(static_cast<size_t>(sequence.length()),
                                                     static_cast<size_t>(take)));
    chosen.push_back(i);
    budget -= take;
  }
  return chosen;
}

}  // namespace

// Positions of one part of a step, some at a time, so that logits take bounded memory.
void Engine::score_part(Run& run, const model::StepPart& part, int64_t first, const std::vector<int32_t>& ids,
                        int64_t top, const Tensor& hidden, ScoredSequence& out) {
  for (int64_t done = 0; done < part.rows; done += run.logits.rows_max()) {
    const int64_t rows = std::min(run.logits.rows_max(), part.rows - done);
    std::vector<int64_t> picked(static_cast<size_t>(rows));
    std::iota(picked.begin(), picked.end(), part.row_begin + done);
    run.logits.compute(*run.decoder, hidden, picked);
    std::vector<int32_t> targets;
    for (int64_t r = 0; r < rows; ++r) {
      const auto next = static_cast<size_t>(first + done + r + 1);
      targets.push_back(next < ids.size() ? ids[next] : -1);
    }
    const std::span<const double> logprobs = run.logits.log_probabilities(targets);
    for (int64_t r = 0; r < rows; ++r) {
      const auto i = static_cast<size_t>(r);
      ScoredPosition p;
      p.id = ids[static_cast<size_t>(first + done + r)];
      p.logsumexp = run.logits.normalizer(r);
      if (targets[i] >= 0) p.target_logprob = logprobs[i];
      p.top = run.logits.best(r, top);
      out.push_back(std::move(p));
    }
  }
}

Result<std::vector<ScoredSequence>> Engine::score(const std::vector<std::vector<int32_t>>& sequences, int64_t top) {
  std::vector<int64_t> lengths;
  for (const std::vector<int32_t>& ids : sequences) lengths.push_back(static_cast<int64_t>(ids.size()));
  std::vector<ScoredSequence> out(sequences.size());
  if (lengths.empty()) return out;
  Result<std::unique_ptr<Run>> started = start(lengths);
  if (!started.ok()) return started.error();
  Run& run = **started;
  while (true) {
    model::Step step;
    const std::vector<size_t> chosen = fill_step(sequences, *run.states, batched_tokens_, step);
    if (chosen.empty()) return out;
    std::vector<int64_t> first;
    for (const model::StepPart& p : step.parts) first.push_back(p.sequence->length());
    const Tensor hidden = run.decoder->forward(step);
    for (size_t n = 0; n < step.parts.size(); ++n) {
      score_part(run, step.parts[n], first[n], sequences[chosen[n]], std::min(top, config_.vocab), hidden,
                 out[chosen[n]]);
    }
  }
}

// Draws the next token of requests whose rows of `hidden` are given, as many at a time as logits fit.
std::vector<ops::Sampled> Engine::sample_rows(Run& run, const std::vector<ops::SampleParams>& params,
                                              const std::vector<int64_t>& rows, const Tensor& hidden) {
  std::vector<ops::Sampled> out;
  const auto most = static_cast<size_t>(run.logits.rows_max());
  for (size_t done = 0; done < rows.size(); done += most) {
    const size_t count = std::min(most, rows.size() - done);
    run.logits.compute(*run.decoder, hidden, std::span(rows).subspan(done, count));
    const std::span<const ops::Sampled> drawn = run.logits.draw(std::span(params).subspan(done, count));
    out.insert(out.end(), drawn.begin(), drawn.end());
  }
  return out;
}

// `ids` holds each request's known ids, those already in its sequence included; generated ids are appended.
std::vector<Generated> Engine::run_requests(Run& run, const std::vector<GenerateRequest>& requests,
                                            std::vector<std::vector<int32_t>>& ids, const OnToken& on_token) {
  std::vector<Generated> out(requests.size());
  while (true) {
    model::Step step;
    const std::vector<size_t> chosen = fill_step(ids, *run.states, batched_tokens_, step);
    if (chosen.empty()) return out;
    const Tensor hidden = run.decoder->forward(step);
    std::vector<size_t> drawing;
    std::vector<int64_t> rows;
    std::vector<ops::SampleParams> params;
    for (size_t n = 0; n < chosen.size(); ++n) {
      const size_t i = chosen[n];
      const int64_t length = run.states->sequence(i).length();
      const auto made = static_cast<int64_t>(out[i].tokens.size());
      if (length < static_cast<int64_t>(ids[i].size()) || made == requests[i].max_tokens) continue;
      const SamplingOptions& s = requests[i].sampling;
      drawing.push_back(i);
      rows.push_back(step.parts[n].row_begin + step.parts[n].rows - 1);
      params.push_back({s.temperature, s.top_p, s.min_p, s.top_k, s.seed, length, 0});
    }
    const std::vector<ops::Sampled> sampled = sample_rows(run, params, rows, hidden);
    for (size_t n = 0; n < drawing.size(); ++n) {
      const size_t i = drawing[n];
      const GeneratedToken token = {sampled[n].id, sampled[n].logprob, sampled[n].processed_logprob};
      out[i].tokens.push_back(token);
      const std::vector<int32_t>& stops = requests[i].stop_ids;
      const bool go_on = !on_token || on_token(i, token);
      if (std::find(stops.begin(), stops.end(), token.id) != stops.end()) {
        out[i].finish = Finish::kStop;
      } else if (!go_on) {
        out[i].finish = Finish::kCancelled;
      } else if (static_cast<int64_t>(out[i].tokens.size()) < requests[i].max_tokens) {
        ids[i].push_back(token.id);
      }
    }
  }
}

Result<std::vector<Generated>> Engine::generate(const std::vector<GenerateRequest>& requests,
                                                const OnToken& on_token) {
  if (requests.empty()) return std::vector<Generated>();
  std::vector<int64_t> lengths;
  std::vector<std::vector<int32_t>> ids;
  for (const GenerateRequest& r : requests) {
    lengths.push_back(static_cast<int64_t>(r.prompt.size()) + r.max_tokens);
    ids.push_back(r.prompt);
  }
  Result<std::unique_ptr<Run>> started = start(lengths);
  if (!started.ok()) return started.error();
  return run_requests(**started, requests, ids, on_token);
}

struct Session::State {
  std::unique_ptr<Engine::Run> run;
  std::vector<int32_t> ids;  // what the sequence has been through
};

Session::Session(std::unique_ptr<State> state, int64_t tokens_max)
    : state_(std::move(state)), tokens_max_(tokens_max) {}
Session::Session(Session&&) noexcept = default;
Session::~Session() = default;

Result<Session> Engine::open_session(int64_t tokens_max) {
  auto state = std::make_unique<Session::State>();
  Result<std::unique_ptr<Run>> run = start({tokens_max});
  if (!run.ok()) return run.error();
  state->run = std::move(*run);
  return Session(std::move(state), tokens_max);
}

Result<Generated> Engine::generate_in(Session& session, const GenerateRequest& request, const OnToken& on_token) {
  const int64_t needed = static_cast<int64_t>(request.prompt.size()) + request.max_tokens;
  if (needed > session.tokens_max()) {
    return out_of_range("the conversation needs {} tokens, there is room for {}", needed, session.tokens_max());
  }
  Session::State& state = *session.state_;
  model::Sequence& sequence = state.run->states->sequence(0);
  const std::vector<int32_t>& p = request.prompt;
  if (state.ids.size() >= p.size() || !std::equal(state.ids.begin(), state.ids.end(), p.begin())) {
    sequence.reset();  // the prompt says something else than what was run
  }
  std::vector<std::vector<int32_t>> ids = {p};
  std::vector<Generated> made = run_requests(*state.run, {request}, ids, on_token);
  state.ids = std::move(ids[0]);
  state.ids.resize(static_cast<size_t>(sequence.length()));
  return std::move(made[0]);
}

}  // namespace perigee::engine
