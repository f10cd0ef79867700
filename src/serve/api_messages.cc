// POST /v1/messages and /v1/messages/count_tokens: Anthropic's protocol over the same engine.
#include <utility>

#include "serve/api_handlers.h"
#include "serve/api_json.h"
#include "serve/api_messages_read.h"
#include "serve/api_prompt.h"
#include "serve/collected.h"

namespace perigee::serve {

using engine::TokenLogprob;
using text::Json;
using text::OutputEvent;

namespace {

struct MessageReply {
  ApiCore* core = nullptr;
  CommonFields common;
};

std::string error_json(const ApiError& error) {
  return fmt::format(R"({{"type":"error","error":{{"type":"{}","message":{}}}}})",
                     error.status >= 500 ? "api_error" : error_type(error.status), quoted(error.message));
}

void send_message_error(Reply& reply, const ApiError& error) {
  reply.send(error.status, kJsonType, error_json(error), retry_headers(error.status));
}

// Cached tokens are told apart from those that were read anew.
void append_message_usage(const Usage& usage, bool with_output, std::string& out) {
  out += fmt::format(
      "{{\"input_tokens\":{},\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":{},\"output_tokens\":{}}}",
      usage.prompt - usage.cached, usage.cached, with_output ? usage.completion : 0);
}

std::string stop_words(const Answer& answer) {
  std::string reason = "end_turn";
  if (answer.match().text.has_value()) reason = "stop_sequence";
  if (answer.reason() == text::FinishReason::kLength) reason = "max_tokens";
  if (answer.reason() == text::FinishReason::kToolCalls) reason = "tool_use";
  std::string out = "\"stop_reason\":\"" + reason + "\",\"stop_sequence\":";
  answer.match().text.has_value() ? append_quoted(*answer.match().text, out) : void(out += "null");
  return out;
}

std::string message_head(const MessageReply& base) {
  return fmt::format("\"id\":{},\"type\":\"message\",\"role\":\"assistant\",\"model\":{}",
                     quoted("msg_" + base.common.request_id), quoted(base.common.model));
}

class MessageStream {
 public:
  explicit MessageStream(MessageReply base) : base_(std::move(base)) {}

  void opened(Session& session) { session.reply().begin(200, kEventStream, stream_headers()); }

  void pieces(Session& session, Choice& choice, std::vector<TokenLogprob>&, std::vector<OutputEvent>& pieces) {
    if (!begun_) begin(choice);
    for (const OutputEvent& piece : pieces) put(choice, piece);
    if (choice.answer.over()) {
      close_block();
      out_ += "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{" + stop_words(choice.answer) +
              "},\"usage\":";
      append_message_usage(usage_of(choice), true, out_);
      out_ += "}\n\n";
    }
    if (!out_.empty()) session.reply().write(std::exchange(out_, {}));
  }

  void complete(Session& session) {
    session.reply().write("event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n");
    session.reply().end();
  }

 private:
  enum class Block { kNone, kThinking, kText, kTool };

  void begin(const Choice& choice) {
    begun_ = true;
    out_ += "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{" + message_head(base_) +
            ",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":";
    append_message_usage(usage_of(choice), false, out_);
    out_ += "}}\n\n";
  }

  void put(const Choice& choice, const OutputEvent& piece) {
    switch (piece.kind) {
      case OutputEvent::Kind::kReasoning:
        open_block(Block::kThinking, "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}");
        return delta("thinking_delta", "thinking", piece.text);
      case OutputEvent::Kind::kContent:
        open_block(Block::kText, "{\"type\":\"text\",\"text\":\"\"}");
        return delta("text_delta", "text", piece.text);
      case OutputEvent::Kind::kCallBegin:
        close_block();
        return open_block(Block::kTool,
                          fmt::format("{{\"type\":\"tool_use\",\"id\":\"{}\",\"name\":{},\"input\":{{}}}}",
                                      call_id(base_.common.request_id, choice.index, piece.call), quoted(piece.text)));
      case OutputEvent::Kind::kArguments:
        return delta("input_json_delta", "partial_json", piece.text);
      case OutputEvent::Kind::kCallEnd:
        return close_block();
      case OutputEvent::Kind::kDone:
        return;
    }
  }

  void open_block(Block block, const std::string& content) {
    if (block_ == block) return;
    close_block();
    block_ = block;
    out_ += fmt::format(
        "event: content_block_start\ndata: {{\"type\":\"content_block_start\",\"index\":{},\"content_block\":{}}}\n\n",
        index_, content);
    head_ = fmt::format(
        "event: content_block_delta\ndata: {{\"type\":\"content_block_delta\",\"index\":{},\"delta\":{{\"type\":\"",
        index_);
  }

  void close_block() {
    if (block_ == Block::kNone) return;
    if (block_ == Block::kThinking) delta("signature_delta", "signature", "");
    out_ +=
        fmt::format("event: content_block_stop\ndata: {{\"type\":\"content_block_stop\",\"index\":{}}}\n\n", index_);
    ++index_;
    block_ = Block::kNone;
  }

  void delta(std::string_view type, std::string_view key, std::string_view text) {
    out_ += head_;
    out_ += type;
    out_ += "\",\"";
    out_ += key;
    out_ += "\":";
    append_quoted(text, out_);
    out_ += "}}\n\n";
  }

  MessageReply base_;
  bool begun_ = false;
  Block block_ = Block::kNone;
  int index_ = 0;
  std::string head_;  // of a delta of the open block
  std::string out_;
};

class MessageWhole {
 public:
  explicit MessageWhole(MessageReply base) : base_(std::move(base)) {}

  void opened(Session&) {}
  void pieces(Session&, Choice&, std::vector<TokenLogprob>&, std::vector<OutputEvent>& pieces) { answer_.add(pieces); }

  void complete(Session& session) {
    const Choice& choice = *session.choices().front();
    std::string out = "{" + message_head(base_) + ",\"content\":[";
    bool any = false;
    const auto block = [&](const std::string& text) { out += std::exchange(any, true) ? "," + text : text; };
    if (!answer_.reasoning.empty()) {
      block("{\"type\":\"thinking\",\"thinking\":" + quoted(answer_.reasoning) + ",\"signature\":\"\"}");
    }
    if (!answer_.content.empty()) block("{\"type\":\"text\",\"text\":" + quoted(answer_.content) + "}");
    for (const Collected::Call& call : answer_.calls) {
      if (call.complete) block(tool_use(choice, call));
    }
    out += "]," + stop_words(choice.answer) + ",\"usage\":";
    append_message_usage(usage_of(choice), true, out);
    session.reply().send(200, kJsonType, out + '}', {});
  }

 private:
  // Arguments that are no object (the model wrote no JSON) have no place in `input`; they are kept under a name.
  std::string tool_use(const Choice& choice, const Collected::Call& call) const {
    const Result<Json> input = text::parse_json(call.arguments, "arguments");
    const bool is_object = input.ok() && input->is_object();
    return fmt::format("{{\"type\":\"tool_use\",\"id\":\"{}\",\"name\":{},\"input\":{}}}",
                       call_id(base_.common.request_id, choice.index, call.index), quoted(call.name),
                       is_object ? call.arguments : "{\"raw_arguments\":" + call.arguments + "}");
  }

  MessageReply base_;
  Collected answer_;
};

std::optional<ApiError> read_message(ApiCore& core, const HttpRequest& request, Job& job, MessageReply& base,
                                     bool only_count) {
  const Result<Json> body = parse_body(request);
  if (!body.ok()) return blamed(body.error());
  Fields fields(*body);
  CommonFields common;
  const ApiLimits& limits = core.options.limits;
  check_model(fields, core.options, common);
  read_sampling(fields, core.options, common);
  read_identity(fields, core.options, request, common);
  common.stream = fields.flag("stream", false);
  if (fields.get("max_tokens") != nullptr) common.max_tokens = fields.integer("max_tokens", 1, 1, kInt64Max);
  common.max_tokens_field = "max_tokens";
  if (!only_count && !common.max_tokens.has_value()) fields.fail("max_tokens", "is missing");
  std::vector<std::string> stops = fields.strings("stop_sequences", limits.stops_max, limits.stop_bytes_max);
  if (!stops.empty()) common.stops = std::make_shared<const StopStrings>(std::move(stops));
  for (const char* key : {"mcp_servers", "container"}) fields.refuse(key, "this server runs no tools");
  const Json* metadata = fields.get("metadata");
  const Json* user = metadata == nullptr ? nullptr : metadata->find_set("user_id");
  if (common.session.empty() && user != nullptr && user->is_string()) {
    common.session = request.tenant + '/' + user->as_string().substr(0, limits.word_bytes_max);
  }
  const MessagesChat chat = chat_of_messages(fields);
  if (fields.failed()) return fields.error();

  ChatPrompt prompt;
  const FieldNames names = {.reasoning_effort = "output_config.effort", .parameters = "input_schema", .function = ""};
  if (auto error = read_chat_prompt(chat.body, *core.tokenizer, prompt)) return renamed(std::move(*error), names);
  job.prompts.push_back(std::move(prompt.ids));
  if (only_count) return std::nullopt;
  if (auto error = constrain_chat(core, prompt.request, nullptr, job.constraint)) return renamed(std::move(*error), names);
  common.sampling.seed = core.next_seed();
  job.rules = chat_rules(prompt.request, common, core.options);
  job.rules.one_call = chat.one_call;
  job.route = "/v1/messages";
  job.prompt_field = "messages";
  job.common = common;
  base.core = &core;
  base.common = std::move(common);
  return plan_lengths(core, job);
}

}  // namespace

void messages(ApiCore& core, const HttpRequest& request, const ReplyPtr& reply) {
  Job job;
  MessageReply base;
  if (const auto error = read_message(core, request, job, base, false)) return send_message_error(*reply, *error);
  const bool stream = base.common.stream;
  Format format = stream ? format_with(std::make_shared<MessageStream>(std::move(base)))
                         : format_with(std::make_shared<MessageWhole>(std::move(base)));
  format.failed = [stream](Session& session, const ApiError& error) {
    if (!stream) return send_message_error(session.reply(), error);
    session.reply().write("event: error\ndata: " + error_json(error) + "\n\n");
    session.reply().end();
  };
  if (const auto error = launch(core, reply, std::move(job), std::move(format))) send_message_error(*reply, *error);
}

void count_tokens(ApiCore& core, const HttpRequest& request, const ReplyPtr& reply) {
  Job job;
  MessageReply base;
  if (const auto error = read_message(core, request, job, base, true)) return send_message_error(*reply, *error);
  reply->send(200, kJsonType, fmt::format("{{\"input_tokens\":{}}}", job.prompts.front().size()), {});
}

}  // namespace perigee::serve
