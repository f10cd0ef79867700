// POST /inference/v1/generate: token ids in, token ids out, for clients that render and parse themselves.
#include <utility>

#include "serve/api_handlers.h"
#include "serve/api_json.h"
#include "serve/api_prompt.h"
#include "serve/collected.h"

namespace perigee::serve {

using engine::TokenLogprob;
using text::Json;
using text::OutputEvent;

namespace {

struct TokenReply {
  ApiCore* core = nullptr;
  CommonFields common;
};

class TokenWriter {
 public:
  explicit TokenWriter(TokenReply base) : base_(std::move(base)) {}

  void opened(Session& session) {
    choices_.resize(session.choices().size());
    if (base_.common.stream) session.reply().begin(200, kEventStream, stream_headers());
  }

  void pieces(Session& session, Choice& choice, std::vector<TokenLogprob>& tokens, std::vector<OutputEvent>&) {
    Collected& mine = choices_[choice.index];
    mine.add(tokens);
    if (!base_.common.stream) return;
    std::string out = "data: {\"request_id\":" + quoted(base_.common.request_id) + ",\"choices\":[";
    append_choice(choice, out);
    out += ']';
    if (base_.common.continuous_usage) {
      out += ",\"usage\":";
      append_usage(usage_of(choice), out);
    }
    session.reply().write(out + "}\n\n");
    mine.tokens.clear();
  }

  void complete(Session& session) {
    std::string out = base_.common.stream ? "data: " : "";
    out += "{\"request_id\":" + quoted(base_.common.request_id) + ",\"choices\":[";
    if (!base_.common.stream) {
      for (const auto& choice : session.choices()) {
        if (choice->index > 0) out += ',';
        append_choice(*choice, out);
      }
    }
    out += "],\"usage\":";
    append_usage(usage_of(session), out);
    if (base_.common.prompt_logprobs >= 0) {
      out += ",\"prompt_logprobs\":";
      append_prompt_logprobs(*base_.core->tokenizer, session.choices().front()->prompt_logprobs,
                             base_.common.prompt_logprobs, out);
    }
    out += '}';
    if (!base_.common.stream) return session.reply().send(200, kJsonType, std::move(out), {});
    out += "\n\ndata: [DONE]\n\n";
    session.reply().write(base_.common.include_usage ? std::move(out) : std::string("data: [DONE]\n\n"));
    session.reply().end();
  }

 private:
  void append_choice(const Choice& choice, std::string& out) const {
    const Collected& mine = choices_[choice.index];
    out += fmt::format("{{\"index\":{},\"token_ids\":", choice.index);
    append_ids(mine.ids(), out);
    out += ",\"logprobs\":";
    if (base_.common.logprobs >= 0) {
      out += "{\"content\":[";
      append_chat_logprobs(*base_.core->tokenizer, mine.tokens, true, out);
      out += "]}";
    } else {
      out += "null";
    }
    out += ",\"finish_reason\":";
    if (choice.answer.over()) {
      append_quoted(text::finish_reason_name(choice.answer.reason()), out);
      out += ",\"stop_reason\":";
      append_stop_reason(choice.answer.match(), out);
    } else {
      out += "null";
    }
    out += '}';
  }

  TokenReply base_;
  std::vector<Collected> choices_;
};

// Sampling stands in an object of its own; the rest of the request beside it.
std::optional<ApiError> read_generate(ApiCore& core, const HttpRequest& request, Job& job, TokenReply& base) {
  const Result<Json> body = parse_body(request);
  if (!body.ok()) return blamed(body.error());
  Fields fields(*body);
  const Json* sampling = fields.get("sampling_params");
  const Json none = Json::object({});
  if (sampling != nullptr && !sampling->is_object()) fields.fail("sampling_params", "must be an object");
  if (fields.failed()) return fields.error();
  Fields inner(sampling == nullptr ? none : *sampling, "sampling_params.");
  CommonFields common = read_common(inner, FieldSet::kTokens, core.options, *core.tokenizer);
  common.stream = fields.flag("stream", false);
  read_stream_options(fields, core.options, common);
  check_model(fields, core.options, common);
  read_identity(fields, core.options, request, common);
  for (const char* key : {"kv_transfer_params", "ec_transfer_params", "features"}) fields.refuse(key, "");
  const char* key = fields.get("prompt_token_ids") != nullptr ? "prompt_token_ids" : "token_ids";
  std::vector<int32_t> ids = fields.ids(key, core.tokenizer->vocab_size(), SIZE_MAX);
  if (ids.empty()) fields.fail(key, "is missing or empty; give at least one token id");
  truncate_prompt(inner, common, ids);
  if (common.prompt_logprobs >= 0 && common.stream) inner.fail("prompt_logprobs", "cannot be given with stream: true");
  job.constraint = read_structured(inner, core);
  if (inner.failed()) fields.fail(*inner.error());
  if (fields.failed()) return fields.error();
  if (inner.get("seed") == nullptr) common.sampling.seed = core.next_seed();
  job.route = "/inference/v1/generate";
  job.prompt_field = key;
  job.field_prefix = "sampling_params.";
  job.prompts.push_back(std::move(ids));
  job.rules = raw_rules(common, core.options);
  job.common = common;
  base.core = &core;
  base.common = std::move(common);
  return plan_lengths(core, job);
}

}  // namespace

void generate(ApiCore& core, const HttpRequest& request, const ReplyPtr& reply) {
  Job job;
  TokenReply base;
  if (const auto error = read_generate(core, request, job, base)) return send_error(*reply, *error);
  const bool stream = base.common.stream;
  Format format = format_with(std::make_shared<TokenWriter>(std::move(base)));
  format.failed = [stream](Session& session, const ApiError& error) {
    stream ? end_stream_with_error(session.reply(), error) : send_error(session.reply(), error);
  };
  if (const auto error = launch(core, reply, std::move(job), std::move(format))) send_error(*reply, *error);
}

}  // namespace perigee::serve
