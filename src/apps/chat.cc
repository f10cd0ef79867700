// perigee chat: a conversation in the terminal, thinking shown apart, with a model on this machine or with a server.
#include <algorithm>

#include "apps/answer.h"
#include "apps/commands.h"
#include "apps/converse.h"
#include "apps/options.h"
#include "apps/remote_chat.h"
#include "text/chat.h"

namespace perigee::apps {
namespace {

constexpr int64_t kDefaultMaxTokens = 1024;
constexpr int64_t kDefaultContext = 65536;

struct ChatFlags {
  ModelFlags model;
  RemoteFlags remote;
  SamplingFlags sampling;
  int64_t max_model_len = 0;
  std::string system;
  bool usage = false;
};

text::Message message_of(text::Role role, const std::string& content) {
  text::Message m;
  m.role = role;
  m.content = {content};
  return m;
}

text::Message assistant_message(const text::ParsedOutput& answer) {
  text::Message m = message_of(text::Role::kAssistant, answer.content.value_or(""));
  m.reasoning = answer.reasoning;
  return m;
}

class Conversation {
 public:
  Conversation(const ChatFlags& flags, engine::Engine& engine, const text::Tokenizer& tokenizer,
               engine::SamplingOptions sampling, engine::Session session)
      : flags_(flags), engine_(engine), tokenizer_(tokenizer), sampling_(sampling), session_(std::move(session)) {
    start_anew();
  }

  void start_anew() {
    chat_.messages.clear();
    if (!flags_.system.empty()) chat_.messages.push_back(message_of(text::Role::kSystem, flags_.system));
  }

  // One turn; on an error the turn is taken back, so that the conversation can go on.
  Status say(const std::string& line, AnswerPrinter& printer, const Interrupt& interrupt) {
    chat_.messages.push_back(message_of(text::Role::kUser, line));
    Status status = answer(printer, interrupt);
    if (!status.ok()) chat_.messages.pop_back();
    return status;
  }

 private:
  Status answer(AnswerPrinter& printer, const Interrupt& interrupt) {
    const Result<std::vector<int32_t>> ids = text::encode_segments(tokenizer_, text::render_chat(chat_));
    if (!ids.ok()) return ids.error();
    engine::GenerateRequest request;
    request.prompt = *ids;
    request.sampling = sampling_;
    request.stop_ids = engine_.config().stop_ids;
    const int64_t room = session_.tokens_max() - static_cast<int64_t>(ids->size());
    const int64_t wish = flags_.sampling.max_tokens > 0 ? flags_.sampling.max_tokens : kDefaultMaxTokens;
    request.max_tokens = std::min(wish, room);
    if (room < 1) {
      return out_of_range("the conversation fills its {} tokens; say /new to start again, or give --max-model-len",
                          session_.tokens_max());
    }
    AnswerReader reader(&tokenizer_, {true, true, false}, request.stop_ids);
    const Result<engine::Generated> made =
        engine_.generate_in(session_, request, [&](size_t, const engine::GeneratedToken& token) {
          printer.print(reader.push(token.id));
          return !interrupt.requested();
        });
    if (!made.ok()) return made.error();
    printer.print(reader.finish(made->finish));
    if (made->finish == engine::Finish::kCancelled) return io_error("the answer was broken off");
    printer.end();
    const Answer answer = reader.answer();
    if (flags_.usage) {
      print_usage({std::ssize(*ids), std::ssize(made->tokens), answer.reasoning_tokens},
                  text::finish_reason_name(answer.parsed.finish_reason), printer);
    }
    chat_.messages.push_back(assistant_message(answer.parsed));
    return {};
  }

  const ChatFlags& flags_;
  engine::Engine& engine_;
  const text::Tokenizer& tokenizer_;
  engine::SamplingOptions sampling_;
  engine::Session session_;
  text::ChatRequest chat_;
};

int run_chat(const ChatFlags& f) {
  if (f.model.model.empty()) return report(invalid_argument("chat needs a MODEL folder, or a server's address with --url"));
  const Result<engine::SamplingOptions> sampling = sampling_options(f.sampling, f.model.seed);
  if (!sampling.ok()) return report(sampling.error());
  const Result<text::Tokenizer> tokenizer = text::Tokenizer::load(f.model.model);
  if (!tokenizer.ok()) return report(tokenizer.error());
  const Result<std::unique_ptr<engine::Engine>> engine = open_engine(f.model);
  if (!engine.ok()) return report(engine.error());
  const int64_t longest = (*engine)->config().positions_max;
  if (f.max_model_len > longest) {
    return report(out_of_range("--max-model-len is {}, the model's context has {} positions", f.max_model_len, longest));
  }
  const int64_t context = f.max_model_len > 0 ? f.max_model_len : std::min(kDefaultContext, longest);
  Result<engine::Session> session = (*engine)->open_session(context);
  if (!session.ok()) return report(session.error());
  Conversation conversation(f, **engine, *tokenizer, *sampling, std::move(*session));
  return converse({[&](const std::string& line, AnswerPrinter& printer, const Interrupt& interrupt) {
                     return conversation.say(line, printer, interrupt);
                   },
                   [&] { conversation.start_anew(); }});
}

}  // namespace

void add_chat(CLI::App& program, int& status) {
  CLI::App* app = program.add_subcommand("chat", "A conversation in the terminal, with a model here or with a server");
  app->footer("The MODEL runs on this machine. With --url a server answers; it gets only the sampling options that are given.");
  auto flags = std::make_shared<ChatFlags>();
  app->add_option("MODEL", flags->model.model, "checkpoint folder");
  add_run_flags(*app, flags->model);
  app->add_option("--max-model-len", flags->max_model_len, "most tokens of the whole conversation")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  add_remote_flags(*app, flags->remote);
  add_sampling_flags(*app, flags->sampling);
  app->add_option("--system", flags->system, "the system message that every conversation begins with");
  app->add_flag("--usage", flags->usage, "count the tokens of each answer");
  CLI::Option* url = app->get_option("--url");
  app->callback([app, flags, url, &status] {
    const ChatFlags& f = *flags;
    status = url->count() > 0 ? run_remote_chat(*app, f.remote, f.sampling, f.model.seed, f.system, f.usage) : run_chat(f);
  });
}

}  // namespace perigee::apps
