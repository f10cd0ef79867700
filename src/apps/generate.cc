// perigee generate: one answer to a prompt, streamed as it comes or printed as JSON.
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "apps/answer.h"
#include "apps/commands.h"
#include "apps/ids.h"
#include "apps/numbers.h"
#include "apps/options.h"
#include "base/file.h"
#include "text/chat.h"
#include "text/json.h"

namespace perigee::apps {
namespace {

constexpr int64_t kDefaultMaxTokens = 1024;

struct GenerateFlags {
  ModelFlags model;
  SamplingFlags sampling;
  std::string prompt;
  std::string text;
  std::string prompt_ids;
  std::string chat;
  std::string logprobs_mode = "raw";
  bool has_prompt = false;
  bool has_text = false;
};

// The prompt's ids, how to read the answer, and the flag that the prompt came from.
struct Prompt {
  std::vector<int32_t> ids;
  AnswerStyle style;
  std::string flag;
};

Result<text::ChatRequest> read_chat(const std::string& path) {
  const Result<std::string> text = read_file(path);
  if (!text.ok()) return text.error();
  const Result<text::Json> body = text::parse_json(*text, path);
  if (!body.ok()) return body.error();
  Result<text::ChatRequest> request = text::parse_chat_request(*body);
  if (!request.ok()) return invalid_argument("{}: {}", path, request.error().message);
  return request;
}

Result<Prompt> chat_prompt(const text::ChatRequest& request, const text::Tokenizer& tokenizer, std::string flag) {
  const Result<std::vector<int32_t>> ids = text::encode_segments(tokenizer, text::render_chat(request));
  if (!ids.ok()) return ids.error();
  Prompt prompt;
  prompt.ids = *ids;
  prompt.style = {true, request.thinking, request.tool_choice == text::ToolChoice::kNone};
  prompt.flag = std::move(flag);
  return prompt;
}

// Requires that exactly one of the four sources was given.
Status check_sources(const GenerateFlags& f) {
  const int given = int(f.has_prompt) + int(f.has_text) + int(!f.prompt_ids.empty()) + int(!f.chat.empty());
  if (given != 1) {
    return invalid_argument("{} of --prompt, --text, --prompt-ids and --chat were given, exactly one is needed", given);
  }
  if (f.has_prompt && f.prompt.empty()) return invalid_argument("--prompt is empty, a message is needed");
  if (f.has_text && f.text.empty()) return invalid_argument("--text is empty, at least one character is needed");
  return {};
}

Result<Prompt> make_prompt(const GenerateFlags& f, const text::Tokenizer* tokenizer) {
  if (!f.prompt_ids.empty()) {
    Result<IdLists> lists = read_id_lists(f.prompt_ids);
    if (!lists.ok()) return lists.error();
    if (lists->nested) return invalid_argument("{} holds an array of arrays, one array of ids is needed", f.prompt_ids);
    return Prompt{std::move(lists->sequences[0]), {}, f.prompt_ids};
  }
  if (f.has_text) return Prompt{tokenizer->encode_text(f.text), {}, "--text"};
  if (f.has_prompt) return chat_prompt(text::single_user_message(f.prompt), *tokenizer, "--prompt");
  const Result<text::ChatRequest> request = read_chat(f.chat);
  if (!request.ok()) return request.error();
  return chat_prompt(*request, *tokenizer, f.chat);
}

std::string tool_calls_json(const Answer& answer) {
  std::vector<text::Json> calls;
  for (const text::ParsedCall& c : answer.parsed.tool_calls) {
    text::Json function = text::Json::object(
        {{"name", text::Json::string(c.name)}, {"arguments", text::Json::string(c.arguments_json)}});
    calls.push_back(text::Json::object({{"id", text::Json::string(fmt::format("{}:{}", c.name, c.index))},
                                        {"type", text::Json::string("function")},
                                        {"function", std::move(function)}}));
  }
  return text::print_json(text::Json::array(std::move(calls)), text::kJsonCompact);
}

template <class T, class F>
std::string list_json(const std::vector<T>& items, F print) {
  std::string out = "[";
  for (const T& item : items) out += (out.size() > 1 ? "," : "") + print(item);
  return out + "]";
}

std::string quoted(const std::string& text) { return text::print_json(text::Json::string(text)); }

std::string answer_json(const Prompt& prompt, const engine::Generated& made, const Answer& answer, bool single,
                        bool processed) {
  const auto id = [](int32_t i) { return fmt::format("{}", i); };
  const std::string ids =
      list_json(made.tokens, [](const engine::GeneratedToken& t) { return fmt::format("{}", t.id); });
  const std::string logprobs = list_json(made.tokens, [&](const engine::GeneratedToken& t) {
    return number(processed ? t.processed_logprob : t.logprob, single);
  });
  const bool apart = !answer.parsed.reasoning.empty();
  return fmt::format(
      "{{\"prompt_ids\":{},\"ids\":{},\"text\":{},\"reasoning\":{},\"tool_calls\":{},\"logprobs\":{},"
      "\"finish_reason\":\"{}\",\"usage\":{{\"prompt_tokens\":{},\"completion_tokens\":{},\"total_tokens\":{},"
      "\"reasoning_tokens\":{}}}}}",
      list_json(prompt.ids, id), ids, quoted(answer.parsed.content.value_or("")),
      apart ? quoted(answer.parsed.reasoning) : "null", tool_calls_json(answer), logprobs,
      text::finish_reason_name(answer.parsed.finish_reason), prompt.ids.size(), made.tokens.size(),
      prompt.ids.size() + made.tokens.size(), answer.reasoning_tokens);
}

Result<engine::GenerateRequest> make_request(const GenerateFlags& f, const engine::Engine& engine,
                                             const Prompt& prompt) {
  const Status good = engine.check_ids(prompt.ids, f.sampling.max_tokens, prompt.flag +
                                       (f.sampling.max_tokens > 0 ? " with --max-tokens" : ""));
  if (!good.ok()) return good.error();
  const Result<engine::SamplingOptions> sampling = sampling_options(f.sampling, f.model.seed);
  if (!sampling.ok()) return sampling.error();
  engine::GenerateRequest request;
  request.prompt = prompt.ids;
  request.sampling = *sampling;
  request.stop_ids = engine.config().stop_ids;
  const int64_t room = engine.config().positions_max - static_cast<int64_t>(prompt.ids.size());
  request.max_tokens = f.sampling.max_tokens > 0 ? f.sampling.max_tokens : std::min(kDefaultMaxTokens, room);
  if (request.max_tokens < 1) {
    return out_of_range("{} fills the model's context of {} positions, nothing can follow", prompt.flag,
                        engine.config().positions_max);
  }
  return request;
}

int run_generate(const GenerateFlags& f) {
  Status good = check_sources(f);
  if (!good.ok()) return report(good.error());
  const Result<engine::SamplingOptions> sampling = sampling_options(f.sampling, f.model.seed);
  if (!sampling.ok()) return report(sampling.error());
  // Ids in, ids out needs no tokenizer; everything else fails early without one.
  Result<text::Tokenizer> tokenizer = text::Tokenizer::load(f.model.model);
  if (!tokenizer.ok() && f.prompt_ids.empty()) return report(tokenizer.error());
  const text::Tokenizer* words = tokenizer.ok() ? &*tokenizer : nullptr;
  const Result<Prompt> prompt = make_prompt(f, words);
  if (!prompt.ok()) return report(prompt.error());
  const Result<std::unique_ptr<engine::Engine>> engine = open_engine(f.model);
  if (!engine.ok()) return report(engine.error());
  const Result<engine::GenerateRequest> request = make_request(f, **engine, *prompt);
  if (!request.ok()) return report(request.error());

  AnswerReader reader(words, prompt->style, request->stop_ids);
  AnswerPrinter printer(::isatty(1) == 1 && ::isatty(2) == 1);
  const bool stream = !f.model.json;
  const Result<std::vector<engine::Generated>> made =
      (*engine)->generate({*request}, [&](size_t, const engine::GeneratedToken& token) {
        const std::vector<text::OutputEvent>& events = reader.push(token.id);
        if (stream) printer.print(events);
        return true;
      });
  if (!made.ok()) return report(made.error());
  const engine::Generated& generated = (*made)[0];
  const std::vector<text::OutputEvent>& last = reader.finish(generated.finish);
  if (stream) {
    printer.print(last);
    printer.end();
  } else {
    fmt::print("{}\n", answer_json(*prompt, generated, reader.answer(),
                                   (*engine)->device() != tensor::Device::kReference,
                                   f.logprobs_mode == "processed"));
  }
  good = write_stats(f.model.stats, **engine);
  return good.ok() ? 0 : report(good.error());
}

}  // namespace

void add_generate(CLI::App& program, int& status) {
  CLI::App* app = program.add_subcommand("generate", "Answers one prompt");
  auto flags = std::make_shared<GenerateFlags>();
  add_model_flags(*app, flags->model);
  add_sampling_flags(*app, flags->sampling);
  CLI::Option* prompt = app->add_option("--prompt", flags->prompt, "one user message, rendered as chat");
  CLI::Option* text = app->add_option("--text", flags->text, "raw text to continue");
  app->add_option("--prompt-ids", flags->prompt_ids, "JSON file with an array of token ids to continue");
  app->add_option("--chat", flags->chat,
                  "JSON file: the body of a chat-completions request, or a bare array of messages");
  app->add_option("--logprobs-mode", flags->logprobs_mode,
                  "raw: of the unmodified distribution; processed: after temperature and filters")
      ->check(CLI::IsMember({"raw", "processed"}));
  app->callback([flags, prompt, text, &status] {
    flags->has_prompt = prompt->count() > 0;
    flags->has_text = text->count() > 0;
    status = run_generate(*flags);
  });
}

}  // namespace perigee::apps
