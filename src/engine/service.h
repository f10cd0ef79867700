// What    The engine as a service: a thread that takes requests as they come, batches them step by step and gives tokens back.
// Owner   engine. The real engine/backend.
// Threads As Backend says. All model work happens on the service's own thread.
// Errors  create() when memory is refused or an option does not fit the model, in one sentence; submit() as Backend says.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "engine/backend.h"
#include "engine/engine.h"

namespace perigee::engine {

struct ServiceOptions {
  // Of the row pool; 0: on the CPU four full contexts, at most a quarter of the free memory; on a GPU what memory_share leaves,
  // at most every sequence at its full length.
  int64_t cache_bytes = 0;
  double memory_share = 0.9;        // of a GPU's memory that the process may use, weights included
  bool prefault_cache = false;      // take the pool's memory at once: a longer start, no pauses later
  int64_t max_num_seqs = 0;         // 0: 64
  int64_t max_num_batched_tokens = 0;  // 0: the engine's default; at least max_num_seqs
  int64_t max_model_len = 0;        // 0: the model's, or what the pool holds if that is less
  int64_t waiting_max = 4096;
  int64_t match_unit = 16;          // tokens; prefixes are found at its multiples
  bool prefix_caching = true;
  double verify_fraction = 0;       // of finished requests that are scored again while nothing else runs
  std::string record_dir;           // requests that come to their own end leave a file there (engine/record); empty: none do
  std::function<void(const std::string&)> on_record_failure;  // once, on a thread of its own; requests do not suffer
  double stall_seconds = 0;         // a test's fault: the thread sleeps once, after its first step
};

class Service : public Backend {
 public:
  static Result<std::unique_ptr<Service>> create(const Engine& engine, const ServiceOptions& options);
  // Ends every request with kAbort.
  ~Service() override;

  const BackendInfo& info() const override;
  BackendState state() const override;
  Result<RequestKey> submit(TokenRequest request, OnUpdate on_update) override;
  void cancel(RequestKey key) override;
  void complete(RequestKey key, int64_t tokens) override;
  void drain() override;
  void pause(bool paused) override;
  void reset_prefix_cache() override;

 private:
  struct Loop;
  explicit Service(std::unique_ptr<Loop> loop);
  std::unique_ptr<Loop> loop_;
};

}  // namespace perigee::engine
