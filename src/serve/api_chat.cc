// POST /v1/chat/completions: the request's fields, the whole reply and the stream of chunks.
#include <ctime>
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

// What both shapes of the reply know.
struct ChatReply {
  ApiCore* core = nullptr;
  CommonFields common;
  std::string head;                 // {"id":..,"object":..,"created":..,"model":..
  std::vector<int32_t> prompt_ids;  // if they are to be returned
  std::string prompt_text;

  std::string tail(bool last) const {
    if (!last || core->options.fingerprint.empty()) return {};
    return ",\"system_fingerprint\":" + quoted(core->options.fingerprint);
  }
};

class ChatStream {
 public:
  explicit ChatStream(ChatReply base) : base_(std::move(base)) { base_.head = "data: " + base_.head; }

  void opened(Session& session) {
    choices_.resize(session.choices().size());
    for (size_t i = 0; i < choices_.size(); ++i) {
      choices_[i].head = base_.head + ",\"choices\":[{\"index\":" + std::to_string(i) + ",\"delta\":{";
    }
    session.reply().begin(200, kEventStream, stream_headers());
  }

  void pieces(Session& session, Choice& choice, std::vector<TokenLogprob>& tokens, std::vector<OutputEvent>& pieces) {
    PerChoice& mine = choices_[choice.index];
    const bool keeps_tokens = base_.common.logprobs >= 0 || base_.common.return_token_ids;
    if (keeps_tokens) {
      for (TokenLogprob& token : tokens) mine.carried.push_back(std::move(token));
    }
    if (!mine.begun) begin(choice);
    for (const OutputEvent& piece : pieces) {
      if (piece.kind == OutputEvent::Kind::kCallEnd) continue;
      out_ += mine.head;
      append_delta(choice, piece);
      end_chunk(choice, false);
    }
    if (choice.answer.over()) {
      out_ += mine.head;
      end_chunk(choice, true);
    }
    if (out_.empty()) return;
    session.reply().write(std::exchange(out_, {}));
  }

  void complete(Session& session) {
    std::string out;
    if (base_.common.include_usage) {
      out += base_.head + ",\"choices\":[]" + base_.tail(true) + ",\"usage\":";
      append_usage(usage_of(session), out);
      out += "}\n\n";
    }
    out += "data: [DONE]\n\n";
    session.reply().write(std::move(out));
    session.reply().end();
  }

 private:
  struct PerChoice {
    std::string head;
    bool begun = false;
    std::vector<TokenLogprob> carried;  // of no chunk yet
  };

  void begin(Choice& choice) {
    choices_[choice.index].begun = true;
    out_ += choices_[choice.index].head;
    out_ += "\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}]";
    if (base_.common.return_token_ids) {
      out_ += ",\"prompt_token_ids\":";
      append_ids(base_.prompt_ids, out_);
    }
    end_object(choice, false);
  }

  void append_delta(const Choice& choice, const OutputEvent& piece) {
    switch (piece.kind) {
      case OutputEvent::Kind::kReasoning: {
        std::string text;
        append_quoted(piece.text, text);
        out_ += "\"reasoning\":" + text + ",\"reasoning_content\":" + text;
        return;
      }
      case OutputEvent::Kind::kContent:
        out_ += "\"content\":";
        append_quoted(piece.text, out_);
        return;
      case OutputEvent::Kind::kCallBegin:
        out_ += fmt::format(
            "\"tool_calls\":[{{\"index\":{},\"id\":\"{}\",\"type\":\"function\",\"function\":{{\"name\":", piece.call,
            call_id(base_.common.request_id, choice.index, piece.call));
        append_quoted(piece.text, out_);
        out_ += ",\"arguments\":\"\"}}]";
        return;
      case OutputEvent::Kind::kArguments:
        out_ += "\"tool_calls\":[{\"index\":";
        append_number(piece.call, out_);
        out_ += ",\"function\":{\"arguments\":";
        append_quoted(piece.text, out_);
        out_ += "}}]";
        return;
      case OutputEvent::Kind::kCallEnd:
      case OutputEvent::Kind::kDone:
        return;
    }
  }

  // From the delta's end to the chunk's end. Tokens go with the first chunk after them.
  void end_chunk(const Choice& choice, bool last) {
    PerChoice& mine = choices_[choice.index];
    if (base_.common.logprobs >= 0 && !mine.carried.empty()) {
      out_ += "},\"logprobs\":{\"content\":[";
      append_chat_logprobs(*base_.core->tokenizer, mine.carried, base_.common.tokens_as_ids, out_);
      out_ += "]}";
    } else {
      out_ += "},\"logprobs\":null";
    }
    if (base_.common.return_token_ids) {
      Collected ids;
      ids.add(mine.carried);
      out_ += ",\"token_ids\":";
      append_ids(ids.ids(), out_);
    }
    mine.carried.clear();
    out_ += ",\"finish_reason\":";
    if (last) {
      append_quoted(text::finish_reason_name(choice.answer.reason()), out_);
      out_ += ",\"stop_reason\":";
      append_stop_reason(choice.answer.match(), out_);
    } else {
      out_ += "null";
    }
    out_ += "}]";
    end_object(choice, last);
  }

  void end_object(const Choice& choice, bool last) {
    if (last) out_ += base_.tail(true);
    if (base_.common.continuous_usage) {
      out_ += ",\"usage\":";
      append_usage(usage_of(choice), out_);
    }
    out_ += "}\n\n";
  }

  ChatReply base_;
  std::vector<PerChoice> choices_;
  std::string out_;  // of one update
};

class ChatWhole {
 public:
  explicit ChatWhole(ChatReply base) : base_(std::move(base)) {}

  void opened(Session& session) { choices_.resize(session.choices().size()); }

  void pieces(Session&, Choice& choice, std::vector<TokenLogprob>& tokens, std::vector<OutputEvent>& pieces) {
    choices_[choice.index].add(pieces);
    if (base_.common.logprobs >= 0 || base_.common.return_token_ids) choices_[choice.index].add(tokens);
  }

  void complete(Session& session) {
    std::string out = base_.head + ",\"choices\":[";
    for (const auto& choice : session.choices()) {
      if (choice->index > 0) out += ',';
      append_choice(*choice, out);
    }
    out += "],\"usage\":";
    append_usage(usage_of(session), out);
    out += base_.tail(true);
    if (base_.common.return_token_ids) {
      out += ",\"prompt_token_ids\":";
      append_ids(base_.prompt_ids, out);
    }
    if (base_.common.return_prompt_text) out += ",\"prompt_text\":" + quoted(base_.prompt_text);
    if (base_.common.prompt_logprobs >= 0) {
      out += ",\"prompt_logprobs\":";
      append_prompt_logprobs(*base_.core->tokenizer, session.choices().front()->prompt_logprobs,
                             base_.common.prompt_logprobs, out);
    }
    out += '}';
    session.reply().send(200, kJsonType, std::move(out), {});
  }

 private:
  void append_choice(const Choice& choice, std::string& out) {
    const Collected& mine = choices_[choice.index];
    out += fmt::format("{{\"index\":{},\"message\":{{\"role\":\"assistant\",\"content\":", choice.index);
    append_content(choice, out);
    if (!mine.reasoning.empty()) {
      const std::string text = quoted(mine.reasoning);
      out += ",\"reasoning\":" + text + ",\"reasoning_content\":" + text;
    }
    append_calls(choice, out);
    out += "},\"logprobs\":";
    if (base_.common.logprobs >= 0) {
      out += "{\"content\":[";
      append_chat_logprobs(*base_.core->tokenizer, mine.tokens, base_.common.tokens_as_ids, out);
      out += "]}";
    } else {
      out += "null";
    }
    out += fmt::format(",\"finish_reason\":\"{}\",\"stop_reason\":", text::finish_reason_name(choice.answer.reason()));
    append_stop_reason(choice.answer.match(), out);
    if (base_.common.return_token_ids) {
      out += ",\"token_ids\":";
      append_ids(mine.ids(), out);
    }
    out += '}';
  }

  void append_content(const Choice& choice, std::string& out) const {
    const Collected& mine = choices_[choice.index];
    mine.content.empty() && !choice.answer.spoke() ? void(out += "null") : append_quoted(mine.content, out);
  }

  // An incomplete call is none.
  void append_calls(const Choice& choice, std::string& out) const {
    bool any = false;
    for (const Collected::Call& call : choices_[choice.index].calls) {
      if (!call.complete) continue;
      out += any ? "," : ",\"tool_calls\":[";
      any = true;
      out += fmt::format("{{\"id\":\"{}\",\"type\":\"function\",\"function\":{{\"name\":{},\"arguments\":{}}}}}",
                         call_id(base_.common.request_id, choice.index, call.index), quoted(call.name),
                         quoted(call.arguments));
    }
    if (any) out += ']';
  }

  ChatReply base_;
  std::vector<Collected> choices_;
};

// Kimi's hosted API takes no other sampling values than its own; `thinking` chooses between two temperatures.
void check_fixed_sampling(Fields& fields, bool thinking, CommonFields& common) {
  const double temperature = thinking ? 1.0 : 0.6;
  const std::pair<const char*, double> fixed[] = {
      {"temperature", temperature}, {"top_p", 0.95}, {"presence_penalty", 0}, {"frequency_penalty", 0}, {"n", 1}};
  for (const auto& [key, value] : fixed) {
    if (fields.number(key, value, -1e9, 1e9) != value)
      fields.fail(key, fmt::format("must be {} for this model", value));
  }
  common.sampling.temperature = temperature;
  common.sampling.top_p = 0.95;
}

std::optional<ApiError> read_chat(ApiCore& core, const HttpRequest& request, Job& job, ChatReply& base) {
  const Result<Json> body = parse_body(request);
  if (!body.ok()) return blamed(body.error());
  Fields fields(*body);
  CommonFields common;
  check_model(fields, core.options, common);
  const std::string model = common.model;
  common = read_common(fields, FieldSet::kChat, core.options, *core.tokenizer);
  common.model = model;
  read_identity(fields, core.options, request, common);
  const bool one_call = !fields.flag("parallel_tool_calls", true);
  const bool drop_reasoning = !fields.flag("include_reasoning", true);
  if (fields.failed()) return fields.error();

  ChatPrompt prompt;
  if (auto error = read_chat_prompt(*body, *core.tokenizer, prompt)) return error;
  if (core.options.fixed_sampling) check_fixed_sampling(fields, prompt.request.thinking, common);
  if (fields.failed()) return fields.error();
  if (auto error = constrain_chat(core, prompt.request, &fields, job.constraint)) return error;
  if (fields.get("seed") == nullptr) common.sampling.seed = core.next_seed();

  job.rules = chat_rules(prompt.request, common, core.options);
  job.rules.one_call = one_call;
  job.rules.drop_reasoning = drop_reasoning;
  if (common.return_token_ids) base.prompt_ids = prompt.ids;
  if (common.return_prompt_text) base.prompt_text = core.tokenizer->decode(prompt.ids).value();
  job.route = "/v1/chat/completions";
  job.prompt_field = "messages";
  job.prompts.push_back(std::move(prompt.ids));
  job.common = common;
  base.core = &core;
  base.common = std::move(common);
  return plan_lengths(core, job);
}

}  // namespace

void chat_completions(ApiCore& core, const HttpRequest& request, const ReplyPtr& reply) {
  Job job;
  ChatReply base;
  if (const auto error = read_chat(core, request, job, base)) return send_error(*reply, *error);
  const bool stream = base.common.stream;
  base.head = fmt::format("{{\"id\":{},\"object\":\"chat.completion{}\",\"created\":{},\"model\":{}",
                          quoted("chatcmpl-" + base.common.request_id), stream ? ".chunk" : "", std::time(nullptr),
                          quoted(base.common.model));
  Format format = stream ? format_with(std::make_shared<ChatStream>(std::move(base)))
                         : format_with(std::make_shared<ChatWhole>(std::move(base)));
  format.failed = [stream](Session& session, const ApiError& error) {
    stream ? end_stream_with_error(session.reply(), error) : send_error(session.reply(), error);
  };
  if (const auto error = launch(core, reply, std::move(job), std::move(format))) send_error(*reply, *error);
}

}  // namespace perigee::serve
