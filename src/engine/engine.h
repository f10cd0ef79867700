// What    A model ready to run: loads it, scores given ids, generates from prompts.
// Owner   engine.
// Threads One call at a time.
// Errors  Result with one sentence for bad ids, lengths or lack of memory, before anything runs.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "model/decoder.h"
#include "model/slice.h"
#include "ops/sample/sample.h"

namespace perigee::engine {

struct EngineOptions {
  std::string model;  // checkpoint folder
  tensor::Device device = tensor::Device::kCpu;
  std::optional<LatentFormat> latent;  // absent: auto
  std::optional<KeyFormat> key;        // absent: auto
  int64_t batched_tokens = 0;          // most tokens of a step; 0: the device's default
  int threads = 0;                     // 0: all that the process may use
  std::string isa = "auto";  // most that the CPU device may use (ops::limit_isa)
  model::Slice slice;        // one rank's share, with random weights only
  model::LoadOptions load;
};

// The formats behind `auto`, and whether a given format fits the model's widths.
Result<model::CacheFormats> choose_formats(const model::Config& config, const EngineOptions& options);

const char* format_name(LatentFormat format);
const char* format_name(KeyFormat format);

struct ScoredPosition {
  int32_t id = 0;
  double logsumexp = 0;
  std::optional<double> target_logprob;  // of the next id; absent at the last position
  std::vector<std::pair<int32_t, double>> top;  // descending, ties by lowest id
};
using ScoredSequence = std::vector<ScoredPosition>;

struct SamplingOptions {
  double temperature = 1.0;
  double top_p = 1.0;
  double min_p = 0.0;
  int64_t top_k = 0;  // 0: all
  uint64_t seed = 0;
};

struct GenerateRequest {
  std::vector<int32_t> prompt;
  SamplingOptions sampling;
  int64_t max_tokens = 0;
  std::vector<int32_t> stop_ids;
};

struct GeneratedToken {
  int32_t id = 0;
  double logprob = 0;            // of the unmodified distribution
  double processed_logprob = 0;  // after temperature and filters
};

enum class Finish { kStop, kLength, kCancelled };

struct Generated {
  std::vector<GeneratedToken> tokens;  // the stop id included
  Finish finish = Finish::kLength;
};

struct MemoryUse {
  size_t weight_bytes = 0;
  size_t cache_bytes = 0;      // of the last call
  size_t workspace_bytes = 0;  // of the last call
};

class Engine;

// One conversation that goes on: a prompt that extends what was already run is continued, anything else starts afresh.
class Session {
 public:
  ~Session();
  Session(Session&&) noexcept;
  int64_t tokens_max() const { return tokens_max_; }

 private:
  friend class Engine;
  struct State;
  explicit Session(std::unique_ptr<State> state, int64_t tokens_max);

  std::unique_ptr<State> state_;
  int64_t tokens_max_;
};

class Engine {
 public:
  static Result<std::unique_ptr<Engine>> open(const EngineOptions& options);

  const EngineOptions& options() const { return options_; }  // as opened, without the progress callback
  const model::Config& config() const { return config_; }
  tensor::Device device() const { return context_.device; }
  const model::CacheFormats& formats() const { return formats_; }
  const MemoryUse& memory() const { return memory_; }
  int threads() const { return pool_->threads(); }
  const ops::Context& context() const { return context_; }
  int64_t batched_tokens() const { return batched_tokens_; }

  // What a loop over many requests needs: a forward pass for steps of up to `rows_max` tokens at positions below
  // `context_max`, and the memory of its sequences. The engine must outlive both.
  Result<std::unique_ptr<model::Decoder>> make_decoder(int64_t rows_max, int64_t context_max) const {
    return model::Decoder::create(context_, config_, weights_, rows_max, context_max);
  }
  Result<std::unique_ptr<model::StatePool>> make_pool(int64_t rows, int64_t slots) const {
    return model::StatePool::create(config_, context_.mover(), formats_, rows, slots);
  }

  // One forward over given ids, all sequences in one batch, in steps of at most batched_tokens.
  Result<std::vector<ScoredSequence>> score(const std::vector<std::vector<int32_t>>& sequences, int64_t top);

  // Runs all requests in one batch. `on_token(request, token)` sees each token as it comes and may return false to
  // end that request.
  using OnToken = std::function<bool(size_t, const GeneratedToken&)>;
  Result<std::vector<Generated>> generate(const std::vector<GenerateRequest>& requests,
                                          const OnToken& on_token);

  // A session of at most `tokens_max` tokens, and one request in it; prompt and new tokens must fit.
  Result<Session> open_session(int64_t tokens_max);
  Result<Generated> generate_in(Session& session, const GenerateRequest& request, const OnToken& on_token);

  // A sentence for the first id outside the vocabulary, an empty list or one that is longer than the model's context;
  // `what` names the flag or field.
  Status check_ids(std::span<const int32_t> ids, int64_t extra_tokens, const std::string& what) const;

 private:
  Engine() = default;

  friend class Session;
  struct Run;  // the pool, decoder and buffers of one call
  Status check_memory(const std::vector<int64_t>& tokens_max, int64_t rows, int64_t longest) const;
  Result<std::unique_ptr<Run>> start(const std::vector<int64_t>& tokens_max);
  std::vector<Generated> run_requests(Run& run, const std::vector<GenerateRequest>& requests,
                                      std::vector<std::vector<int32_t>>& ids, const OnToken& on_token);
  std::vector<ops::Sampled> sample_rows(Run& run, const std::vector<ops::SampleParams>& params,
                                        const std::vector<int64_t>& rows, const model::Tensor& hidden);
  void score_part(Run& run, const model::StepPart& part, int64_t first, const std::vector<int32_t>& ids, int64_t top,
                  const model::Tensor& hidden, ScoredSequence& out);

  EngineOptions options_;
  model::Config config_;
  tensor::GpuStream stream_;  // of a GPU's context
  model::Weights weights_;
  std::unique_ptr<ThreadPool> pool_;
  ops::Context context_;
  model::CacheFormats formats_;
  int64_t batched_tokens_ = 0;
  MemoryUse memory_;
};

}  // namespace perigee::engine
