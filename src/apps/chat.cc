// perigee chat: a conversation in the terminal, thinking shown apart.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>

#include "apps/answer.h"
#include "apps/commands.h"
#include "apps/options.h"
#include "text/chat.h"

namespace perigee::apps {
namespace {

constexpr int64_t kDefaultMaxTokens = 1024;
constexpr int64_t kDefaultContext = 65536;

struct ChatFlags {
  ModelFlags model;
  SamplingFlags sampling;
  int64_t max_model_len = 0;
};

text::Message user_message(const std::string& line) {
  text::Message m;
  m.role = text::Role::kUser;
  m.content = {line};
  return m;
}

text::Message assistant_message(const text::ParsedOutput& answer) {
  text::Message m;
  m.role = text::Role::kAssistant;
  m.content = {answer.content.value_or("")};
  m.reasoning = answer.reasoning;
  return m;
}

class Conversation {
 public:
  Conversation(const ChatFlags& flags, engine::Engine& engine, const text::Tokenizer& tokenizer,
               engine::SamplingOptions sampling, engine::Session session)
      : flags_(flags), engine_(engine), tokenizer_(tokenizer), sampling_(sampling), session_(std::move(session)) {}

  void start_anew() { chat_.messages.clear(); }

  // One turn; on an error the turn is taken back, so that the conversation can go on.
  Status say(const std::string& line, AnswerPrinter& printer) {
    chat_.messages.push_back(user_message(line));
    Status status = answer(printer);
    if (!status.ok()) chat_.messages.pop_back();
    return status;
  }

 private:
  Status answer(AnswerPrinter& printer) {
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
          return true;
        });
    if (!made.ok()) return made.error();
    printer.print(reader.finish(made->finish));
    printer.end();
    chat_.messages.push_back(assistant_message(reader.answer().parsed));
    return {};
  }

  const ChatFlags& flags_;
  engine::Engine& engine_;
  const text::Tokenizer& tokenizer_;
  engine::SamplingOptions sampling_;
  engine::Session session_;
  text::ChatRequest chat_;
};

// Reads lines until the end of input or /quit.
int converse(Conversation& conversation, bool terminal) {
  AnswerPrinter printer(terminal);
  if (terminal) fmt::print(stderr, "Say something. /new starts again, /quit ends.\n");
  std::string line;
  while (true) {
    if (terminal) {
      fmt::print(stderr, "\n> ");
      std::fflush(stderr);
    }
    if (!std::getline(std::cin, line) || line == "/quit") break;
    if (line.empty()) continue;
    if (line == "/new") {
      conversation.start_anew();
      continue;
    }
    const Status said = conversation.say(line, printer);
    if (!said.ok()) {
      const int status = report(said.error());
      if (!terminal) return status;
    }
  }
  if (terminal) fmt::print(stderr, "\n");
  return 0;
}

int run_chat(const ChatFlags& f) {
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
  return converse(conversation, ::isatty(0) == 1 && ::isatty(1) == 1 && ::isatty(2) == 1);
}

}  // namespace

void add_chat(CLI::App& program, int& status) {
  CLI::App* app = program.add_subcommand("chat", "A conversation in the terminal");
  auto flags = std::make_shared<ChatFlags>();
  add_model_flags(*app, flags->model);
  add_sampling_flags(*app, flags->sampling);
  app->add_option("--max-model-len", flags->max_model_len, "most tokens of the whole conversation")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  app->callback([flags, &status] { status = run_chat(*flags); });
}

}  // namespace perigee::apps
