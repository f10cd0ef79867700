// POST /v1/completions: raw text or token ids in, text out; log-probabilities of prompts as evaluation harnesses ask
// for them.
#include <ctime>
#include <utility>

#include "serve/api_handlers.h"
#include "serve/api_json.h"
#include "serve/api_prompt.h"
#include "serve/legacy_logprobs.h"

namespace perigee::serve {

using engine::TokenLogprob;
using text::Json;
using text::OutputEvent;

namespace {

constexpr int64_t kTokensDefault = 16;  // OpenAI's, for texts that nobody gave a length

struct TextReply {
  ApiCore* core = nullptr;
  CommonFields common;
  std::string head;
  bool echo = false;
  bool score_only = false;
  int64_t shown_prompt_logprobs = -1;         // as the client asked; echo may need them on its own
  std::vector<std::vector<int32_t>> prompts;  // if echoed or returned
};

// One choice's text and the log-probabilities that go with it, as far as not yet written.
class TextChoice {
 public:
  explicit TextChoice(const TextReply& base)
      : base_(&base),
        logprobs_(*base.core->tokenizer, {.top = base.common.logprobs,
                                          .skip_hidden = base.common.skip_hidden,
                                          .as_ids = base.common.tokens_as_ids}) {}

  void add(const Choice& choice, std::vector<TokenLogprob>& tokens, const std::vector<OutputEvent>& pieces) {
    if (!begun_) begin(choice);
    for (const OutputEvent& piece : pieces) text_ += piece.text;
    if (base_->score_only) return;
    for (const TokenLogprob& token : tokens) {
      if (base_->common.logprobs >= 0) logprobs_.add(token.id, &token);
      if (base_->common.return_token_ids) ids_.push_back(token.id);
    }
  }

  bool has_text() const { return !text_.empty(); }

  // Everything since the last call, from "index" to the end of the choice.
  void append(const Choice& choice, std::string& out) {
    out += fmt::format("{{\"index\":{},\"text\":", choice.index);
    append_quoted(text_, out);
    out += ",\"logprobs\":";
    base_->common.logprobs >= 0 ? logprobs_.append(out) : void(out += "null");
    out += ",\"finish_reason\":";
    if (choice.answer.over()) {
      append_quoted(text::finish_reason_name(choice.answer.reason()), out);
      out += ",\"stop_reason\":";
      append_stop_reason(choice.answer.match(), out);
    } else {
      out += "null";
    }
    if (base_->common.return_token_ids) {
      out += ",\"token_ids\":";
      append_ids(ids_, out);
      if (!wrote_) {
        out += ",\"prompt_token_ids\":";
        append_ids(base_->prompts[choice.prompt], out);
      }
    }
    if (base_->shown_prompt_logprobs >= 0) {
      out += ",\"prompt_logprobs\":";
      append_prompt_logprobs(*base_->core->tokenizer, choice.prompt_logprobs, base_->shown_prompt_logprobs, out);
    }
    out += '}';
    wrote_ = true;
    text_.clear();
    ids_.clear();
  }

 private:
  void begin(const Choice& choice) {
    begun_ = true;
    if (!base_->echo) return;
    const std::vector<int32_t>& prompt = base_->prompts[choice.prompt];
    text_ = base_->core->tokenizer->decode(prompt, {.skip_hidden = base_->common.skip_hidden}).value();
    if (base_->common.logprobs < 0) return;
    for (size_t i = 0; i < prompt.size(); ++i) {
      const bool known = i < choice.prompt_logprobs.size() && choice.prompt_logprobs[i].has_value();
      logprobs_.add(prompt[i], known ? &*choice.prompt_logprobs[i] : nullptr);
    }
    logprobs_.end_of_prompt();
  }

  const TextReply* base_;
  LegacyLogprobs logprobs_;
  std::string text_;
  std::vector<int32_t> ids_;
  bool begun_ = false;
  bool wrote_ = false;
};

// Both shapes of the reply: they differ in when a choice is written.
class TextWriter {
 public:
  explicit TextWriter(TextReply base) : base_(std::move(base)) {}

  void opened(Session& session) {
    choices_.reserve(session.choices().size());
    for (size_t i = 0; i < session.choices().size(); ++i) choices_.emplace_back(base_);
    if (base_.common.stream) session.reply().begin(200, kEventStream, stream_headers());
  }

  void pieces(Session& session, Choice& choice, std::vector<TokenLogprob>& tokens, std::vector<OutputEvent>& pieces) {
    TextChoice& mine = choices_[choice.index];
    mine.add(choice, tokens, pieces);
    if (!base_.common.stream || !(mine.has_text() || choice.answer.over())) return;
    std::string out = "data: " + base_.head + ",\"choices\":[";
    mine.append(choice, out);
    out += ']';
    if (base_.common.continuous_usage) {
      out += ",\"usage\":";
      append_usage(usage_of(choice), out);
    }
    out += fingerprint(choice.answer.over()) + "}\n\n";
    session.reply().write(std::move(out));
  }

  void complete(Session& session) {
    if (base_.common.stream) return complete_stream(session);
    std::string out = base_.head + ",\"choices\":[";
    for (const auto& choice : session.choices()) {
      if (choice->index > 0) out += ',';
      choices_[choice->index].append(*choice, out);
    }
    out += "],\"usage\":";
    append_usage(usage_of(session), out);
    out += fingerprint(true) + '}';
    session.reply().send(200, kJsonType, std::move(out), {});
  }

 private:
  void complete_stream(Session& session) {
    std::string out;
    if (base_.common.include_usage) {
      out += "data: " + base_.head + ",\"choices\":[],\"usage\":";
      append_usage(usage_of(session), out);
      out += fingerprint(true) + "}\n\n";
    }
    out += "data: [DONE]\n\n";
    session.reply().write(std::move(out));
    session.reply().end();
  }

  std::string fingerprint(bool last) const {
    const std::string& print = base_.core->options.fingerprint;
    return last && !print.empty() ? ",\"system_fingerprint\":" + quoted(print) : "";
  }

  TextReply base_;
  std::vector<TextChoice> choices_;
};

std::optional<ApiError> read_completion(ApiCore& core, const HttpRequest& request, Job& job, TextReply& base) {
  const Result<Json> body = parse_body(request);
  if (!body.ok()) return blamed(body.error());
  Fields fields(*body);
  CommonFields common = read_common(fields, FieldSet::kCompletion, core.options, *core.tokenizer);
  check_model(fields, core.options, common);
  read_identity(fields, core.options, request, common);
  base.echo = fields.flag("echo", false);
  job.prompts = read_prompts(fields, core, common);
  job.constraint = read_structured(fields, core);
  if (fields.failed()) return fields.error();
  if (!common.max_tokens.has_value() && core.options.defaults.max_tokens == 0) common.max_tokens = kTokensDefault;
  base.score_only = common.max_tokens == 0;
  if (base.score_only && !base.echo) fields.fail("max_tokens", "must be at least 1, or 0 with echo: true");
  base.shown_prompt_logprobs = common.prompt_logprobs;
  if (base.echo) common.prompt_logprobs = std::max(common.prompt_logprobs, common.logprobs);
  if (fields.failed()) return fields.error();
  if (fields.get("seed") == nullptr) common.sampling.seed = core.next_seed();

  job.rules = raw_rules(common, core.options);
  job.rules.score_only = base.score_only;
  if (base.echo || common.return_token_ids) base.prompts = job.prompts;
  job.route = "/v1/completions";
  job.prompt_field = "prompt";
  job.common = common;
  base.core = &core;
  base.common = std::move(common);
  return plan_lengths(core, job);
}

}  // namespace

void completions(ApiCore& core, const HttpRequest& request, const ReplyPtr& reply) {
  Job job;
  TextReply base;
  if (const auto error = read_completion(core, request, job, base)) return send_error(*reply, *error);
  const bool stream = base.common.stream;
  base.head = fmt::format("{{\"id\":{},\"object\":\"text_completion\",\"created\":{},\"model\":{}",
                          quoted("cmpl-" + base.common.request_id), std::time(nullptr), quoted(base.common.model));
  Format format = format_with(std::make_shared<TextWriter>(std::move(base)));
  format.failed = [stream](Session& session, const ApiError& error) {
    stream ? end_stream_with_error(session.reply(), error) : send_error(session.reply(), error);
  };
  if (const auto error = launch(core, reply, std::move(job), std::move(format))) send_error(*reply, *error);
}

}  // namespace perigee::serve
