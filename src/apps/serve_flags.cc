#include "apps/serve_flags.h"

#include "engine/record.h"
#include "text/json.h"

namespace perigee::apps {
namespace {

void add_engine_flags(CLI::App& app, ServeFlags& f) {
  const auto count = CLI::Range(int64_t{1}, int64_t{1} << 40);
  app.add_option("--max-num-seqs", f.max_num_seqs, "most sequences that run at once (64)")->check(CLI::Range(1, 65536));
  app.add_option("--max-model-len", f.max_model_len, "longest context; default: the model's, or what the cache holds")
      ->check(count);
  app.add_flag("--prefault-kv-cache", f.prefault_kv_cache,
               "take the cache's memory at the start, not row by row: first tokens come without pauses for it");
  app.add_option("--kv-cache-memory-bytes", f.kv_cache_memory_bytes,
                 "bytes of the cache's row pool; default: four full contexts, at most a quarter of the free memory; on a GPU "
                 "what --gpu-memory-utilization leaves")
      ->check(count);
  app.add_option("--prefix-match-unit", f.prefix_match_unit, "tokens; prefixes are found at multiples of it")
      ->check(CLI::Range(16, 1 << 20));
  app.add_option("--max-num-waiting", f.waiting_max, "requests that may wait; more are answered with 429")
      ->check(CLI::Range(1, 1 << 24));
  app.add_flag("--enable-prefix-caching", f.enable_prefix_caching, "on by default");
  app.add_flag("--no-enable-prefix-caching", f.no_prefix_caching, "compute every prompt from its first token");
  app.add_option("--verify-fraction", f.verify_fraction, "share of finished requests that are scored again in idle time")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--record", f.record, "folder in which every finished request leaves a file for perigee replay");
  app.add_option("--fault", f.fault, 
                 "for tests: stall-engine:SECONDS lets the engine's thread sleep once, stall-loading:SECONDS the loading");
}

void add_listener_flags(CLI::App& app, ServeFlags& f) {
  app.add_option("--host", f.host, "address to listen on");
  app.add_option("--port", f.port, "port to listen on; 0: any free one, which is printed")->check(CLI::Range(0, 65535));
  app.add_option("--api-key", f.api_keys, "who calls must name one of these keys (may be given several times)");
  app.add_option("--admin-host", f.admin_host, "address of the listener for administration");
  app.add_option("--admin-port", f.admin_port, "port of the listener for administration; default: none")
      ->check(CLI::Range(0, 65535));
  app.add_option("--admin-key", f.admin_key, "key of the listener for administration");
  app.add_option("--ssl-certfile", f.tls_certificate, "certificate, PEM");
  app.add_option("--ssl-keyfile", f.tls_key, "private key, PEM");
  app.add_option("--timeout-keep-alive", f.keep_alive_s, "seconds for which an idle connection is kept")
      ->check(CLI::Range(1.0, 1e6));
  app.add_option("--sse-keep-alive-interval", f.sse_keep_alive_s,
                 "seconds of silence after which a stream gets a comment; 0: never")
      ->check(CLI::Range(0.0, 1e6));
  app.add_option("--max-body-bytes", f.body_bytes_max, "longest request body")->check(CLI::Range(1024, 1 << 30));
  app.add_option("--max-bodies-bytes", f.bodies_bytes_max, "of all requests that are being read; more are refused (503)")
      ->check(CLI::Range(int64_t{1} << 20, int64_t{1} << 40));
  app.add_option("--h11-max-incomplete-event-size,--max-header-bytes", f.head_bytes_max, "longest request head")
      ->check(CLI::Range(1024, 1 << 24));
  app.add_option("--allowed-origins", f.allowed_origins, "web origins that may call from a browser; '*': all");
  app.add_flag("--disable-access-log,--disable-uvicorn-access-log", f.no_access_log, "no log line for each request");
  app.add_option("--drain-timeout", f.drain_s, "seconds that running requests get after SIGTERM")->check(CLI::Range(0.0, 1e6));
}

void add_answer_flags(CLI::App& app, ServeFlags& f) {
  app.add_option("--served-model-name", f.served_model_names, "names under which clients ask; the first is echoed");
  app.add_option("--max-logprobs", f.max_logprobs, "most alternatives that a request may ask for")->check(CLI::Range(0, 1000));
  app.add_flag("--fixed-sampling", f.fixed_sampling, "refuse sampling values other than Kimi's own, as its hosted API does");
  app.add_flag("--enable-force-include-usage", f.force_usage, "every stream ends with its usage");
  app.add_option("--tool-call-parser", f.tool_call_parser, "kimi_k3");
  app.add_option("--reasoning-parser", f.reasoning_parser, "kimi_k3");
  app.add_flag("--enable-auto-tool-choice", f.enable_auto_tool_choice, "on by default");
  app.add_flag("--trust-remote-code", f.trust_remote_code, "accepted; no code of a checkpoint is ever run");
}

void add_parallel_flags(CLI::App& app, ServeFlags& f) {
  app.add_option("--tensor-parallel-size,--tp", f.tensor_parallel_size, "1");
  app.add_option("--pipeline-parallel-size,--pp", f.pipeline_parallel_size, "1");
  app.add_option("--data-parallel-size,--dp", f.data_parallel_size, "1");
  app.add_option("--decode-context-parallel-size,--dcp", f.decode_context_parallel_size, "1");
  app.add_flag("--enable-expert-parallel", f.enable_expert_parallel, "not yet");
  app.add_option("--gpu-memory-utilization", f.gpu_memory_utilization,
                 "share of a GPU's memory that may be used, weights included; a CPU's cache is set by --kv-cache-memory-bytes")
      ->check(CLI::Range(0.01, 1.0));
  app.add_option("--speculative-config", f.speculative_config, "not yet");
}

}  // namespace

void add_serve_flags(CLI::App& app, ServeFlags& flags) {
  add_model_flags(app, flags.model);
  add_engine_flags(app, flags);
  add_listener_flags(app, flags);
  add_answer_flags(app, flags);
  add_parallel_flags(app, flags);
}

namespace {

// Origins one by one, or a JSON list of them as other servers take it; quotes that a shell left on are no part of one.
Result<std::vector<std::string>> read_origins(const std::vector<std::string>& given) {
  std::vector<std::string> origins;
  for (const std::string& word : given) {
    if (word.empty() || (word[0] != '[' && word[0] != '"')) {
      origins.push_back(word);
      continue;
    }
    const Result<text::Json> value = text::parse_json(word, "--allowed-origins");
    if (!value.ok()) return value.error();
    const std::vector<text::Json> items = value->is_array() ? value->items() : std::vector<text::Json>{*value};
    for (const text::Json& item : items) {
      if (!item.is_string()) return invalid_argument("--allowed-origins holds {}, origins are needed", item.kind_name());
      origins.push_back(item.as_string());
    }
  }
  return origins;
}

}  // namespace

Status check(const ServeFlags& f) {
  const std::pair<const char*, int64_t> sizes[] = {{"--tensor-parallel-size", f.tensor_parallel_size},
                                                   {"--pipeline-parallel-size", f.pipeline_parallel_size},
                                                   {"--data-parallel-size", f.data_parallel_size},
                                                   {"--decode-context-parallel-size", f.decode_context_parallel_size}};
  for (const auto& [flag, size] : sizes) {
    if (size != 1) return invalid_argument("{} {}: this version serves from one rank; leave it at 1", flag, size);
  }
  if (f.enable_expert_parallel) {
    return invalid_argument("--enable-expert-parallel: this version serves from one rank; leave it out");
  }
  if (!f.speculative_config.empty()) {
    return invalid_argument("--speculative-config: this version does not speculate; leave it out");
  }
  if (f.tool_call_parser != "kimi_k3") return invalid_argument("--tool-call-parser is '{}'; use kimi_k3", f.tool_call_parser);
  if (f.reasoning_parser != "kimi_k3") return invalid_argument("--reasoning-parser is '{}'; use kimi_k3", f.reasoning_parser);
  if (f.enable_prefix_caching && f.no_prefix_caching) {
    return invalid_argument("--enable-prefix-caching and --no-enable-prefix-caching exclude each other");
  }
  if ((f.prefix_match_unit & (f.prefix_match_unit - 1)) != 0) {
    return invalid_argument("--prefix-match-unit {} is no power of two from 16 on", f.prefix_match_unit);
  }
  if (f.admin_port >= 0 && f.admin_key.empty()) {
    return invalid_argument("--admin-port needs --admin-key: administration is never open to everybody");
  }
  if (f.tls_certificate.empty() != f.tls_key.empty()) {
    return invalid_argument("--ssl-certfile and --ssl-keyfile need each other");
  }
  const Result<std::vector<std::string>> origins = read_origins(f.allowed_origins);
  if (!origins.ok()) return origins.error();
  if (!f.record.empty()) return engine::check_record_folder(f.record, "--record");
  return {};
}

Result<Fault> fault_of(const ServeFlags& f) {
  Fault fault;
  if (f.fault.empty()) return fault;
  for (const auto& [name, seconds] : {std::pair("stall-engine:", &fault.stall_engine_s),
                                      std::pair("stall-loading:", &fault.stall_loading_s)}) {
    if (f.fault.starts_with(name)) *seconds = std::atof(f.fault.c_str() + std::string_view(name).size());
  }
  if (fault.stall_engine_s > 0 || fault.stall_loading_s > 0) return fault;
  return invalid_argument("--fault is '{}'; use stall-engine:SECONDS or stall-loading:SECONDS", f.fault);
}

engine::ServiceOptions service_options(const ServeFlags& f, const Fault& fault) {
  engine::ServiceOptions o;
  o.cache_bytes = f.kv_cache_memory_bytes;
  o.memory_share = f.gpu_memory_utilization;
  o.prefault_cache = f.prefault_kv_cache;
  o.max_num_seqs = f.max_num_seqs;
  o.max_num_batched_tokens = f.model.max_num_batched_tokens;
  o.max_model_len = f.max_model_len;
  o.waiting_max = f.waiting_max;
  o.match_unit = f.prefix_match_unit;
  o.prefix_caching = !f.no_prefix_caching;
  o.verify_fraction = f.verify_fraction;
  o.record_dir = f.record;
  o.stall_seconds = fault.stall_engine_s;
  return o;
}

serve::ServerOptions server_options(const ServeFlags& f) {
  serve::ServerOptions o;
  o.host = f.host;
  o.port = f.port;
  o.api_keys = f.api_keys;
  o.admin_host = f.admin_host;
  if (f.admin_port >= 0) o.admin_port = f.admin_port;
  o.admin_key = f.admin_key;
  o.tls_certificate = f.tls_certificate;
  o.tls_key = f.tls_key;
  o.limits.keep_alive_s = f.keep_alive_s;
  o.limits.sse_keep_alive_s = f.sse_keep_alive_s;
  o.limits.intake.body_bytes_max = static_cast<uint64_t>(f.body_bytes_max);
  o.limits.bodies_bytes_max = f.bodies_bytes_max;
  o.limits.intake.head_bytes_max = static_cast<size_t>(f.head_bytes_max);
  o.cors.origins = *read_origins(f.allowed_origins);
  o.access_log = !f.no_access_log;
  o.log = serve::stderr_log();
  return o;
}

}  // namespace perigee::apps
