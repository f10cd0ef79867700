// What    The flags of `perigee serve`, named as `vllm serve` names them where the meaning is the same.
// Owner   apps.
// Threads Plain data.
// Errors  check() names the flag that cannot be honoured.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/options.h"
#include "base/result.h"
#include "engine/service.h"
#include "serve/server.h"

namespace perigee::apps {

struct ServeFlags {
  ModelFlags model;
  std::vector<std::string> served_model_names;
  // Scheduling and cache.
  int64_t max_num_seqs = 0;
  int64_t max_model_len = 0;
  int64_t kv_cache_memory_bytes = 0;
  bool prefault_kv_cache = false;
  int64_t prefix_match_unit = 16;
  int64_t waiting_max = 4096;
  bool no_prefix_caching = false;
  // Listeners.
  std::string host = "127.0.0.1";
  int port = 8000;
  std::vector<std::string> api_keys;
  std::string admin_host = "127.0.0.1";
  int admin_port = -1;
  std::string admin_key;
  std::string tls_certificate;
  std::string tls_key;
  double keep_alive_s = 900;
  double sse_keep_alive_s = 0;
  int64_t body_bytes_max = int64_t{64} << 20;
  int64_t bodies_bytes_max = int64_t{1} << 30;
  int64_t head_bytes_max = 65536;
  std::vector<std::string> allowed_origins;
  bool no_access_log = false;
  double drain_s = 30;
  // Answers.
  int64_t max_logprobs = 20;
  bool fixed_sampling = false;
  bool force_usage = false;
  std::string tool_call_parser = "kimi_k3";
  std::string reasoning_parser = "kimi_k3";
  double verify_fraction = 0;
  std::string record;
  std::string fault;
  // Accepted because other engines need them, or refused until they exist.
  bool enable_prefix_caching = false;
  bool enable_auto_tool_choice = false;
  bool trust_remote_code = false;
  double gpu_memory_utilization = 0.9;
  std::string speculative_config;
  int64_t tensor_parallel_size = 1;
  int64_t pipeline_parallel_size = 1;
  int64_t data_parallel_size = 1;
  int64_t decode_context_parallel_size = 1;
  bool enable_expert_parallel = false;
};

void add_serve_flags(CLI::App& app, ServeFlags& flags);
Status check(const ServeFlags& flags);
// What --fault asks for; zeros without it.
struct Fault {
  double stall_engine_s = 0;
  double stall_loading_s = 0;
};
Result<Fault> fault_of(const ServeFlags& flags);
engine::ServiceOptions service_options(const ServeFlags& flags, const Fault& fault);
serve::ServerOptions server_options(const ServeFlags& flags);

}  // namespace perigee::apps
