#include "apps/remote_chat.h"

#include <signal.h>

#include <algorithm>
#include <utility>

#include "apps/converse.h"
#include "base/file.h"
#include "serve/chat_client.h"
#include "text/utf8.h"

namespace perigee::apps {
namespace {

constexpr size_t kKeyBytesMax = 65536;

class RemoteConversation {
 public:
  RemoteConversation(const serve::ChatClient& client, serve::ChatQuestion question, bool keep_thinking)
      : client_(client), question_(std::move(question)), first_(question_.turns.size()), keep_thinking_(keep_thinking) {}

  void start_anew() { question_.turns.resize(first_); }

  Status say(const std::string& line, AnswerPrinter& printer, const Interrupt& interrupt) {
    if (!text::is_valid_utf8(line)) return invalid_argument("the line is not UTF-8 text, nothing was sent");
    question_.turns.push_back({"user", line});
    bool began = false;
    const auto print = [&](const std::vector<text::OutputEvent>& events) {
      began = began || !events.empty();
      printer.print(events);
    };
    Result<serve::ChatAnswer> answer = client_.ask(question_, print, interrupt.descriptor());
    if (!answer.ok()) {
      question_.turns.pop_back();
      const Error& error = answer.error();
      return began ? Error{error.code, error.message + "; what came of it is not kept"} : error;
    }
    printer.end();
    if (answer->usage.has_value() && question_.usage) print_usage(*answer->usage, answer->finish_reason, printer);
    serve::ChatTurn turn{"assistant", std::move(answer->content)};
    if (keep_thinking_) {
      turn.reasoning = std::move(answer->reasoning);
      turn.reasoning_field = std::move(answer->reasoning_field);
    }
    question_.turns.push_back(std::move(turn));
    return {};
  }

 private:
  const serve::ChatClient& client_;
  serve::ChatQuestion question_;
  const size_t first_;  // turns that every conversation begins with
  const bool keep_thinking_;
};

Result<std::string> read_key(const CLI::App& app, const RemoteFlags& f) {
  std::string key = f.api_key;
  const char* flag = "--api-key";
  if (!f.api_key_file.empty()) {
    Result<std::string> text = read_file(f.api_key_file, kKeyBytesMax);
    if (!text.ok()) return invalid_argument("--api-key-file: {}", text.error().message);
    key = std::move(*text);
    flag = "--api-key-file";
    while (!key.empty() && (key.back() == '\n' || key.back() == '\r' || key.back() == ' ')) key.pop_back();
  } else if (app.count("--api-key") == 0) {
    return key;
  }
  if (key.empty()) return invalid_argument("{} holds no key", flag);
  if (!std::all_of(key.begin(), key.end(), [](char c) { return c > ' ' && c < 0x7f; })) {
    return invalid_argument("{}: a key is one word of visible ASCII characters", flag);
  }
  return key;
}

serve::ChatQuestion first_question(const CLI::App& app, const SamplingFlags& sampling, uint64_t seed,
                                   const std::string& system, bool usage) {
  serve::ChatQuestion question;
  const auto set = [&](const char* flag, auto value, auto& field) {
    if (app.count(flag) > 0) field = value;
  };
  set("--temperature", sampling.temperature, question.temperature);
  set("--top-p", sampling.top_p, question.top_p);
  set("--min-p", sampling.min_p, question.min_p);
  set("--top-k", sampling.top_k, question.top_k);
  set("--max-tokens", sampling.max_tokens, question.max_tokens);
  set("--seed", seed, question.seed);
  question.usage = usage;
  if (!system.empty()) question.turns.push_back({"system", system});
  return question;
}

}  // namespace

void add_remote_flags(CLI::App& app, RemoteFlags& flags) {
  const std::vector<CLI::Option*> local = app.get_options();
  CLI::Option* url = app.add_option("--url", flags.url,
                                    "talk to this OpenAI-compatible server instead of a MODEL here: http:// or https://, "
                                    "with or without /v1");
  for (CLI::Option* option : local) {
    const bool shared = option->check_name("--seed") || option->check_name("--help");
    if (!shared) option->excludes(url);
  }
  CLI::Option* key = app.add_option("--api-key", flags.api_key, "the server's key; others on this machine may see it");
  CLI::Option* key_file = app.add_option("--api-key-file", flags.api_key_file, "file with the server's key");
  key->excludes(key_file);
  CLI::Option* others[] = {
      key, key_file,
      app.add_option("--model", flags.model, "the model's name there; default: the first that the server names"),
      app.add_option("--ca-file", flags.ca_file, "PEM file with authorities to trust besides the system's"),
      app.add_flag("--drop-thinking", flags.drop_thinking, "do not send earlier thinking back to the server")};
  for (CLI::Option* option : others) option->needs(url);
}

int run_remote_chat(const CLI::App& app, const RemoteFlags& flags, const SamplingFlags& sampling, uint64_t seed,
                    const std::string& system, bool usage) {
  const Result<engine::SamplingOptions> good = sampling_options(sampling, seed);
  if (!good.ok()) return report(good.error());
  Result<serve::Url> url = serve::parse_url(flags.url, "--url");
  if (!url.ok()) return report(url.error());
  Result<std::string> key = read_key(app, flags);
  if (!key.ok()) return report(key.error());
  const Result<serve::ChatClient> client = serve::ChatClient::create(std::move(*url), std::move(*key), flags.ca_file);
  if (!client.ok()) return report(client.error());
  ::signal(SIGPIPE, SIG_IGN);  // a server that closes is an answer like any other, through TLS too

  serve::ChatQuestion question = first_question(app, sampling, seed, system, usage);
  question.model = flags.model;
  if (question.model.empty()) {
    Result<std::string> first = client->first_model(-1);
    if (!first.ok()) return report(first.error());
    question.model = std::move(*first);
  }
  RemoteConversation conversation(*client, std::move(question), !flags.drop_thinking);
  return converse({[&](const std::string& line, AnswerPrinter& printer, const Interrupt& interrupt) {
                     return conversation.say(line, printer, interrupt);
                   },
                   [&] { conversation.start_anew(); }});
}

}  // namespace perigee::apps
