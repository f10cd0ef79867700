// What    What a server asks of an engine: take a request of token ids, give tokens back as they come, say how it fares.
// Owner   engine. engine/service is the real one; tests have a scripted one.
// Threads Every method may be called from any thread. Callbacks run on the engine's thread, one at a time, in order for each
//         request, never after the one that carries `finish`; they must be short and must not call back into the backend, except
//         for cancel() and complete().
// Errors  submit() returns one sentence for what can never run (ids, lengths). kResourceExhausted means that the backend takes no
//         request now: state() says whether it drains; otherwise its queue is full.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "text/constraint.h"

namespace perigee::engine {

using RequestKey = uint64_t;  // of one submitted request, never used twice

struct TokenSampling {
  double temperature = 1.0;
  double top_p = 1.0;
  double min_p = 0.0;
  int64_t top_k = 0;  // 0: all
  uint64_t seed = 0;
  int64_t choice = 0;  // which of n answers; its noise differs from the others'
  double repetition_penalty = 1.0;
  double presence_penalty = 0.0;
  double frequency_penalty = 0.0;
  std::vector<std::pair<int32_t, float>> logit_bias;
  std::vector<int32_t> allowed_ids;              // empty: all
  std::vector<std::vector<int32_t>> bad_words;   // token sequences that must not be completed
  int64_t min_tokens = 0;                        // before this many, stop ids cannot be chosen
};

struct TokenRequest {
  std::vector<int32_t> prompt;
  TokenSampling sampling;
  int64_t max_tokens = 0;
  std::vector<int32_t> stop_ids;
  int64_t top_logprobs = 0;      // alternatives for each generated token
  int64_t prompt_logprobs = -1;  // alternatives for each prompt token; -1: none, not even the token's own
  bool processed_logprobs = false;  // after temperature and filters
  int64_t priority = 0;          // lower first
  std::string session;           // whose turn it is among equals; empty: a session of its own
  std::string cache_salt;        // prefixes are shared between requests of one salt only
  std::string label;             // the client's request id, for logs and records
  std::shared_ptr<text::Constraint> constraint;  // none: free
};

struct TokenLogprob {
  int32_t id = 0;
  double logprob = 0;
  std::vector<std::pair<int32_t, double>> top;  // descending, ties by lowest id
  double model_logprob = 0;  // of the unmodified distribution, whatever was asked for
};

enum class RequestEnd { kStop, kLength, kAbort, kError };

// Of one request, in seconds from its submit() on the engine's clock; negative: not yet.
struct RequestTimes {
  double first_step = -1;   // begins, of which it is a part
  double first_token = -1;  // is chosen
  double last_token = -1;
};

struct TokenUpdate {
  std::vector<TokenLogprob> tokens;
  int64_t cached_tokens = 0;  // prompt tokens that were not computed; known from the first update on
  std::vector<std::optional<TokenLogprob>> prompt;  // once, with the first tokens, if asked for; none at position 0
  RequestTimes times;
  std::optional<RequestEnd> finish;
  std::string error;  // of kError: one sentence
};

using OnUpdate = std::function<void(TokenUpdate&&)>;

struct BackendInfo {
  std::string model;            // folder
  int64_t max_model_len = 0;
  int64_t vocab = 0;
  int64_t block_tokens = 0;
  int64_t rows = 0;             // of the cache pool
  int64_t cache_tokens = 0;     // rows * block_tokens
  std::string latent_format;
  std::string key_format;
};

struct BackendState {
  uint64_t beats = 0;           // grows while the engine's thread lives, within a step too
  double beat_age_s = 0;        // since the last one
  uint64_t steps = 0;
  int64_t running = 0;
  int64_t waiting = 0;
  double cache_usage = 0;       // rows that running requests hold, 0 to 1
  bool draining = false;
  bool paused = false;
  // Counters since the start.
  uint64_t preemptions = 0;
  uint64_t prefix_queries = 0;  // prompt tokens looked up, once per request
  uint64_t prefix_hits = 0;     // of them found
  uint64_t prompt_tokens = 0;   // computed
  uint64_t generated_tokens = 0;
  uint64_t verified = 0;        // finished requests that were scored again
  uint64_t mismatches = 0;      // of them with other bits
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const BackendInfo& info() const = 0;
  virtual BackendState state() const = 0;
  virtual Result<RequestKey> submit(TokenRequest request, OnUpdate on_update) = 0;
  // Ends a request with kAbort within one step; unknown or finished ones are left alone.
  virtual void cancel(RequestKey key) = 0;
  // The same for a caller who has a whole answer in the first `tokens` tokens, at a stop string say: the request counts as
  // finished there and is recorded and verified. One that ended by itself meanwhile is left as it ended.
  virtual void complete(RequestKey key, int64_t tokens) = 0;
  // No new requests (submit() fails); running ones go on to their end.
  virtual void drain() = 0;
  virtual void pause(bool paused) = 0;
  virtual void reset_prefix_cache() = 0;
};

}  // namespace perigee::engine
