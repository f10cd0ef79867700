// perigee serve: an HTTP server in front of the engine, for the clients that exist.
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "apps/commands.h"
#include "apps/serve_flags.h"
#include "apps/signals.h"
#include "base/file.h"
#include "serve/api.h"
#include "serve/errors.h"
#include "serve/health.h"
#include "serve/metrics.h"
#include "text/grammar.h"
#include "text/tokenizer.h"

namespace perigee::apps {
namespace {

// Numbers of generation_config.json; what is missing or no number keeps its default.
serve::SamplingDefaults sampling_defaults(const std::string& folder) {
  serve::SamplingDefaults d;
  const Result<std::string> text = read_file(folder + "/generation_config.json");
  if (!text.ok()) return d;
  const nlohmann::json json = nlohmann::json::parse(*text, nullptr, false);
  const auto number = [&](const char* key, auto& value) {
    if (json.is_object() && json.contains(key) && json[key].is_number()) json[key].get_to(value);
  };
  number("temperature", d.temperature);
  number("top_p", d.top_p);
  number("top_k", d.top_k);
  number("min_p", d.min_p);
  number("repetition_penalty", d.repetition_penalty);
  return d;
}

serve::ConstraintMaker constraint_maker(std::shared_ptr<text::GrammarCompiler> compiler) {
  using Kind = serve::ConstraintSpec::Kind;
  return [compiler](const serve::ConstraintSpec& spec) -> Result<std::shared_ptr<text::Constraint>> {
    if (spec.kind == Kind::kChat) return compiler->for_chat(*spec.chat);
    using Wanted = text::StructuredOutputs::Kind;
    text::StructuredOutputs wanted;
    wanted.kind = spec.kind == Kind::kJsonSchema   ? Wanted::kJsonSchema
                  : spec.kind == Kind::kJsonObject ? Wanted::kJsonObject
                  : spec.kind == Kind::kRegex      ? Wanted::kRegex
                  : spec.kind == Kind::kChoice     ? Wanted::kChoice
                                                   : Wanted::kGrammar;
    wanted.schema = spec.schema;
    wanted.source = spec.source;
    wanted.choices = spec.choices;
    wanted.field = spec.field;
    return spec.chat != nullptr ? compiler->for_chat(*spec.chat, &wanted) : compiler->for_completion(wanted);
  };
}

std::vector<std::string> model_names(const ServeFlags& flags) {
  return flags.served_model_names.empty() ? std::vector{flags.model.model} : flags.served_model_names;
}

serve::ApiOptions api_options(const ServeFlags& flags, const engine::Engine& engine) {
  serve::ApiOptions o;
  o.model_names = model_names(flags);
  o.end_ids = engine.config().stop_ids;
  o.defaults = sampling_defaults(flags.model.model);
  o.limits.top_logprobs_max = flags.max_logprobs;
  if (flags.model.seed != 0) o.seed = flags.model.seed;
  o.always_usage = flags.force_usage;
  o.fixed_sampling = flags.fixed_sampling;
  o.created = static_cast<int64_t>(::time(nullptr));
  return o;
}

void report_to(const std::shared_ptr<serve::Metrics>& metrics, serve::ApiOptions& o) {
  o.on_token_gap = [metrics](double seconds, int64_t tokens) { metrics->inter_token(seconds, tokens); };
  o.on_finished = [metrics](const serve::RequestRecord& r) {
    serve::RequestReport report;
    report.finish_reason = r.reason;
    report.prompt_tokens = r.prompt_tokens;
    report.generated_tokens = r.generated_tokens;
    report.n = r.choices;
    if (r.max_tokens > 0) report.max_tokens = r.max_tokens;
    report.e2e_s = r.total_s;
    if (r.first_token_s >= 0) metrics->first_token(r.first_token_s);
    if (r.queue_s >= 0) report.queue_s = r.queue_s;
    if (r.prefill_s >= 0) report.prefill_s = r.prefill_s;
    if (r.decode_s >= 0) report.decode_s = r.decode_s;
    metrics->request_finished(report);
  };
}

// Health is here as well: this listener stays open while the other one drains.
std::vector<serve::Route> admin_routes(engine::Backend& backend, const std::shared_ptr<serve::Health>& health) {
  const auto route = [](const char* path, std::function<void()> act) {
    return serve::Route{"POST", path, [act](const serve::HttpRequest&, const std::shared_ptr<serve::Reply>& reply) {
                          act();
                          reply->send(200, "application/json", "{}", {});
                        }};
  };
  std::vector<serve::Route> routes = serve::Health::routes(health);
  routes.push_back(route("/pause", [&backend] { backend.pause(true); }));
  routes.push_back(route("/resume", [&backend] { backend.pause(false); }));
  routes.push_back(route("/reset_prefix_cache", [&backend] { backend.reset_prefix_cache(); }));
  routes.push_back(route("/drain", [&backend] { backend.drain(); }));
  return routes;
}

// What answers requests, in the order in which it is made.
struct Loaded {
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::unique_ptr<engine::Engine> engine;
  std::unique_ptr<engine::Service> service;
};

Result<Loaded> load(const ServeFlags& flags, const Fault& fault, const serve::LogSink& log) {
  Loaded out;
  if (fault.stall_loading_s > 0) std::this_thread::sleep_for(std::chrono::duration<double>(fault.stall_loading_s));
  // What is no checkpoint folder is said by the engine; otherwise the tokenizer comes first, because it is read at once.
  if (!std::filesystem::is_directory(flags.model.model)) return open_engine(flags.model).error();
  Result<text::Tokenizer> tokenizer = text::Tokenizer::load(flags.model.model);
  if (!tokenizer.ok()) return tokenizer.error();
  out.tokenizer = std::make_unique<text::Tokenizer>(std::move(*tokenizer));
  Result<std::unique_ptr<engine::Engine>> engine = open_engine(flags.model);
  if (!engine.ok()) return engine.error();
  out.engine = std::move(*engine);
  engine::ServiceOptions wanted = service_options(flags, fault);
  wanted.on_record_failure = [log](const std::string& why) {
    log(serve::LogLevel::kError, fmt::format("a request was not recorded: {} (told once)", why));
  };
  Result<std::unique_ptr<engine::Service>> service = engine::Service::create(*out.engine, wanted);
  if (!service.ok()) return service.error();
  out.service = std::move(*service);
  return out;
}

std::unique_ptr<serve::Api> make_api(const ServeFlags& flags, const Loaded& loaded,
                                     const std::shared_ptr<serve::Metrics>& metrics) {
  serve::ApiOptions wanted = api_options(flags, *loaded.engine);
  report_to(metrics, wanted);
  text::GrammarCompiler::Options grammar;
  grammar.stop_ids = loaded.engine->config().stop_ids;
  wanted.make_constraint = constraint_maker(std::make_shared<text::GrammarCompiler>(*loaded.tokenizer, grammar));
  return std::make_unique<serve::Api>(std::move(wanted), *loaded.service, *loaded.tokenizer);
}

void add_api_routes(serve::Api& api, std::vector<serve::Route>& routes) {
  for (serve::ApiRoute& r : api.routes()) {
    routes.push_back({r.method, r.path, std::move(r.handler), serve::Access::kKey,
                      r.heavy ? serve::Where::kWorker : serve::Where::kInline});
  }
}

void tell(const serve::LogSink& log, const ServeFlags& flags, const serve::Server& server, const engine::BackendInfo& info) {
  log(serve::LogLevel::kInfo, fmt::format("GPU KV cache size: {} tokens ({} rows of {} tokens, {} latents, {} keys)",
                                          info.cache_tokens, info.rows, info.block_tokens, info.latent_format, info.key_format));
  log(serve::LogLevel::kInfo, fmt::format("{} listens on {}://{}:{}, context {} tokens", flags.model.model,
                                          flags.tls_certificate.empty() ? "http" : "https", flags.host, server.port(),
                                          info.max_model_len));
  if (const std::optional<int> port = server.admin_port()) {
    log(serve::LogLevel::kInfo, fmt::format("administration on port {}", *port));
  }
}

// Before the port is taken: what is wrong with the flags alone.
Status check_all(const ServeFlags& flags) {
  const Status checked = check(flags);
  if (!checked.ok()) return checked;
  const Result<engine::EngineOptions> options = engine_options(flags.model);
  if (!options.ok()) return options.error();
  return {};
}

Status run(const ServeFlags& flags) {
  SignalWatch signals;  // before anything that has a thread: the log, too
  const Status checked = check_all(flags);
  if (!checked.ok()) return checked;
  const Result<Fault> fault = fault_of(flags);
  if (!fault.ok()) return fault.error();
  serve::ServerOptions server_wanted = server_options(flags);
  const serve::LogSink log = server_wanted.log;
  signals.start();
  signal(SIGPIPE, SIG_IGN);

  // The port comes first: whoever watches the server sees that it loads, and a port that is taken shows at once.
  const auto health = std::make_shared<serve::Health>(PERIGEE_VERSION, server_wanted.state);
  const auto metrics = std::make_shared<serve::Metrics>(model_names(flags)[0], server_wanted.state);
  std::vector<serve::Route> routes = serve::Health::routes(health);
  routes.push_back(serve::Metrics::route(metrics, serve::Access::kOpen));
  server_wanted.on_finished = [metrics](const serve::FinishedRequest& f) { metrics->exchange_finished(f); };
  server_wanted.loading = true;
  Result<std::unique_ptr<serve::Server>> server = serve::Server::create(std::move(server_wanted), routes);
  if (!server.ok()) return server.error();
  (*server)->start();
  log(serve::LogLevel::kInfo, fmt::format("port {} is open, loading {}", (*server)->port(), flags.model.model));

  Result<Loaded> loaded = load(flags, *fault, log);
  if (!loaded.ok()) return loaded.error();
  engine::Service& backend = *loaded->service;
  const std::unique_ptr<serve::Api> api = make_api(flags, *loaded, metrics);
  add_api_routes(*api, routes);
  metrics->set_backend(&backend);
  (*server)->open(std::move(routes), admin_routes(backend, health));
  health->set_backend(&backend);  // last: who sees it ready finds everything there
  signals.loaded();
  tell(log, flags, **server, backend.info());
  signals.wait();
  log(serve::LogLevel::kInfo, "shutting down: running requests go on to their end");
  backend.drain();
  const int64_t broken = (*server)->drain(flags.drain_s);
  if (broken > 0) log(serve::LogLevel::kWarning, fmt::format("{} request(s) were broken off", broken));
  (*server)->stop();
  loaded->service.reset();  // ends what is left, so that the API hears of it
  api->settle();
  return {};
}

}  // namespace

void add_serve(CLI::App& program, int& status) {
  CLI::App* app = program.add_subcommand("serve", "HTTP server: OpenAI's and Anthropic's APIs over the engine");
  auto flags = std::make_shared<ServeFlags>();
  add_serve_flags(*app, *flags);
  app->callback([flags, &status] {
    const Status done = run(*flags);
    if (!done.ok()) status = report(done.error());
  });
}

}  // namespace perigee::apps
