// POST /v1/responses: items in, items out. Nothing is stored, so no response can be continued by its id.
#include <ctime>
#include <utility>

#include "serve/api_handlers.h"
#include "serve/api_json.h"
#include "serve/api_prompt.h"
#include "serve/api_responses_read.h"

namespace perigee::serve {

using engine::TokenLogprob;
using text::Json;
using text::OutputEvent;

namespace {

struct ResponseReply {
  ApiCore* core = nullptr;
  CommonFields common;
  std::string head;  // what of the response object is known from the start, without the brace
};

// Builds items from pieces, and tells each step as an event if the reply is a stream; so both shapes hold the same.
class ResponseWriter {
 public:
  explicit ResponseWriter(ResponseReply base) : base_(std::move(base)), stream_(base_.common.stream) {}

  void opened(Session& session) {
    if (!stream_) return;
    session.reply().begin(200, kEventStream, stream_headers());
    event("response.created", "\"response\":" + object("in_progress", {}));
    event("response.in_progress", "\"response\":" + object("in_progress", {}));
    flush(session);
  }

  void pieces(Session& session, Choice& choice, std::vector<TokenLogprob>&, std::vector<OutputEvent>& pieces) {
    for (const OutputEvent& piece : pieces) put(choice, piece);
    if (choice.answer.over()) close_item();
    if (stream_) flush(session);
  }

  void complete(Session& session) {
    const bool is_short = session.choices().front()->answer.reason() == text::FinishReason::kLength;
    const std::string done = object(is_short ? "incomplete" : "completed", usage_of(session), is_short);
    if (!stream_) return session.reply().send(200, kJsonType, done, {});
    event(is_short ? "response.incomplete" : "response.completed", "\"response\":" + done);
    flush(session);
    session.reply().end();
  }

  void failed(Session& session, const ApiError& error) {
    if (!stream_) return send_error(session.reply(), error);
    std::string response = base_.head;
    response += ",\"status\":\"failed\",\"error\":{\"code\":\"server_error\",\"message\":" + quoted(error.message);
    event("response.failed",
          "\"response\":" + response + "},\"incomplete_details\":null,\"output\":[],\"usage\":null}");
    flush(session);
    session.reply().end();
  }

 private:
  enum class Item { kNone, kReasoning, kMessage, kCall };

  std::string object(std::string_view status, const std::optional<Usage>& usage, bool is_short = false) const {
    std::string out =
        base_.head + fmt::format(",\"status\":\"{}\",\"error\":null,\"incomplete_details\":{},\"output\":[", status,
                                 is_short ? "{\"reason\":\"max_output_tokens\"}" : "null");
    for (size_t i = 0; i < items_.size(); ++i) out += (i > 0 ? "," : "") + items_[i];
    out += "],\"usage\":";
    if (!usage.has_value()) return out + "null}";
    return out + fmt::format(
                     "{{\"input_tokens\":{},\"input_tokens_details\":{{\"cached_tokens\":{}}},\"output_tokens\":{},"
                     "\"output_tokens_details\":{{\"reasoning_tokens\":{}}},\"total_tokens\":{}}}}}",
                     usage->prompt, usage->cached, usage->completion, usage->reasoning,
                     usage->prompt + usage->completion);
  }

  void event(std::string_view type, std::string_view members) {
    if (!stream_) return;
    out_ += fmt::format("event: {}\ndata: {{\"type\":\"{}\",\"sequence_number\":{},{}}}\n\n", type, type, sequence_++,
                        members);
  }

  void flush(Session& session) {
    if (!out_.empty()) session.reply().write(std::exchange(out_, {}));
  }

  void put(const Choice& choice, const OutputEvent& piece) {
    switch (piece.kind) {
      case OutputEvent::Kind::kReasoning:
        if (item_ != Item::kReasoning) open_item(Item::kReasoning, "rs");
        return add_text("response.reasoning_text.delta", piece.text);
      case OutputEvent::Kind::kContent:
        if (item_ != Item::kMessage) open_item(Item::kMessage, "msg");
        return add_text("response.output_text.delta", piece.text);
      case OutputEvent::Kind::kCallBegin:
        close_item();
        call_id_ = call_id(base_.common.request_id, choice.index, piece.call);
        name_ = piece.text;
        return open_item(Item::kCall, "fc");
      case OutputEvent::Kind::kArguments:
        return add_text("response.function_call_arguments.delta", piece.text);
      case OutputEvent::Kind::kCallEnd:
        complete_call_ = true;
        return close_item();
      case OutputEvent::Kind::kDone:
        return;
    }
  }

  void open_item(Item item, std::string_view prefix) {
    close_item();
    item_ = item;
    complete_call_ = false;
    item_id_ = fmt::format("{}_{}_{}", prefix, base_.common.request_id, index_);
    place_ = fmt::format("\"item_id\":{},\"output_index\":{}", quoted(item_id_), index_);
    event("response.output_item.added",
          fmt::format("\"output_index\":{},\"item\":{}", index_, item_json("in_progress", false)));
    if (item == Item::kCall) return;
    place_ += ",\"content_index\":0";
    event("response.content_part.added", place_ + ",\"part\":" + part_json());
  }

  void add_text(std::string_view type, const std::string& text) {
    text_ += text;
    if (!stream_) return;
    event(type, place_ + ",\"delta\":" + quoted(text) + (item_ == Item::kMessage ? ",\"logprobs\":[]" : ""));
  }

  std::string part_json() const {
    if (item_ == Item::kReasoning) return "{\"type\":\"reasoning_text\",\"text\":" + quoted(text_) + "}";
    return "{\"type\":\"output_text\",\"text\":" + quoted(text_) + ",\"annotations\":[],\"logprobs\":[]}";
  }

  std::string item_json(std::string_view status, bool with_content) const {
    const std::string common = fmt::format("\"id\":{},\"status\":\"{}\"", quoted(item_id_), status);
    const std::string content = with_content ? part_json() : "";
    if (item_ == Item::kReasoning)
      return "{\"type\":\"reasoning\"," + common + ",\"summary\":[],\"content\":[" + content + "]}";
    if (item_ == Item::kMessage) {
      return "{\"type\":\"message\"," + common + ",\"role\":\"assistant\",\"content\":[" + content + "]}";
    }
    return fmt::format("{{\"type\":\"function_call\",{},\"call_id\":\"{}\",\"name\":{},\"arguments\":{}}}", common,
                       call_id_, quoted(name_), quoted(text_));
  }

  // A call that did not come to its end is told, but is no part of the output: nobody may run it.
  void close_item() {
    if (item_ == Item::kNone) return;
    const bool is_call = item_ == Item::kCall;
    const bool counts = !is_call || complete_call_;
    if (is_call) {
      if (counts) event("response.function_call_arguments.done", place_ + ",\"arguments\":" + quoted(text_));
    } else {
      const char* type = item_ == Item::kReasoning ? "response.reasoning_text.done" : "response.output_text.done";
      event(type, place_ + ",\"text\":" + quoted(text_) + (item_ == Item::kMessage ? ",\"logprobs\":[]" : ""));
      event("response.content_part.done", place_ + ",\"part\":" + part_json());
    }
    std::string item = item_json(counts ? "completed" : "incomplete", true);
    event("response.output_item.done", fmt::format("\"output_index\":{},\"item\":{}", index_, item));
    if (counts) items_.push_back(std::move(item));
    ++index_;
    item_ = Item::kNone;
    text_.clear();
  }

  ResponseReply base_;
  bool stream_;
  std::string out_;
  int64_t sequence_ = 0;
  int64_t index_ = 0;
  Item item_ = Item::kNone;  // the open one
  std::string item_id_, place_, text_, name_, call_id_;
  bool complete_call_ = false;
  std::vector<std::string> items_;
};

// The request's own values, as they go back to the client.
std::string response_head(const Fields& fields, const CommonFields& common) {
  std::string out =
      fmt::format("{{\"id\":{},\"object\":\"response\",\"created_at\":{},\"model\":{},\"background\":false",
                  quoted("resp_" + common.request_id), std::time(nullptr), quoted(common.model));
  const std::pair<const char*, const char*> echoed[] = {{"instructions", "null"},
                                                        {"max_output_tokens", "null"},
                                                        {"metadata", "{}"},
                                                        {"parallel_tool_calls", "true"},
                                                        {"reasoning", "null"},
                                                        {"text", R"({"format":{"type":"text"}})"},
                                                        {"tool_choice", "\"auto\""},
                                                        {"tools", "[]"},
                                                        {"user", "null"}};
  for (const auto& [key, fallback] : echoed) {
    const Json* value = fields.get(key);
    out += fmt::format(",\"{}\":{}", key, value == nullptr ? fallback : text::print_json(*value, text::kJsonCompact));
  }
  return out + fmt::format(
                   ",\"temperature\":{},\"top_p\":{},\"previous_response_id\":null,\"store\":false,\"truncation\":"
                   "\"disabled\"",
                   common.sampling.temperature, common.sampling.top_p);
}

void refuse_in_responses(Fields& fields) {
  if (fields.get("previous_response_id") != nullptr) {
    ApiError error;
    error.status = 404;
    error.param = "previous_response_id";
    error.message =
        "previous_response_id names a response that is not here: this server stores none; send the items again";
    fields.fail(std::move(error));
  }
  fields.refuse("background", "nothing is stored");
  fields.refuse("conversation", "nothing is stored");
  fields.refuse("prompt", "nothing is stored; send instructions and input");
  fields.refuse("top_logprobs", "use chat completions");
  fields.refuse("max_tool_calls", "this server runs no tools");
  const std::string truncation = fields.string("truncation", 64, "disabled");
  if (truncation != "disabled") fields.fail("truncation", "must be disabled: a cut prompt would not be a conversation");
}

std::optional<ApiError> read_response(ApiCore& core, const HttpRequest& request, Job& job, ResponseReply& base) {
  const Result<Json> body = parse_body(request);
  if (!body.ok()) return blamed(body.error());
  Fields fields(*body);
  CommonFields common;
  refuse_in_responses(fields);
  check_model(fields, core.options, common);
  read_sampling(fields, core.options, common);
  read_identity(fields, core.options, request, common);
  common.stream = fields.flag("stream", false);
  fields.flag("store", false);  // either way nothing is
  const bool one_call = !fields.flag("parallel_tool_calls", true);
  if (fields.get("max_output_tokens") != nullptr)
    common.max_tokens = fields.integer("max_output_tokens", 1, 1, kInt64Max);
  common.max_tokens_field = "max_output_tokens";
  const Json chat = chat_of_responses(fields);
  if (fields.failed()) return fields.error();

  ChatPrompt prompt;
  FieldNames names = {.messages = "input", .response_format = "text.format", .parameters = "parameters", .function = ""};
  const bool flat_effort = fields.get("reasoning_effort") != nullptr;
  if (!flat_effort) names.reasoning_effort = "reasoning.effort";
  if (auto error = read_chat_prompt(chat, *core.tokenizer, prompt)) return renamed(std::move(*error), names);
  if (auto error = constrain_chat(core, prompt.request, nullptr, job.constraint)) return renamed(std::move(*error), names);
  const bool has_seed = fields.get("seed") != nullptr;
  common.sampling.seed =
      has_seed ? static_cast<uint64_t>(fields.integer("seed", 0, kInt64Min, kInt64Max)) : core.next_seed();
  if (fields.failed()) return fields.error();
  job.rules = chat_rules(prompt.request, common, core.options);
  job.rules.one_call = one_call;
  job.route = "/v1/responses";
  job.prompt_field = "input";
  job.prompts.push_back(std::move(prompt.ids));
  job.common = common;
  base.core = &core;
  base.head = response_head(fields, common);
  base.common = std::move(common);
  return plan_lengths(core, job);
}

}  // namespace

void responses(ApiCore& core, const HttpRequest& request, const ReplyPtr& reply) {
  Job job;
  ResponseReply base;
  if (const auto error = read_response(core, request, job, base)) return send_error(*reply, *error);
  const auto writer = std::make_shared<ResponseWriter>(std::move(base));
  Format format = format_with(writer);
  format.failed = [writer](Session& session, const ApiError& error) { writer->failed(session, error); };
  if (const auto error = launch(core, reply, std::move(job), std::move(format))) send_error(*reply, *error);
}

}  // namespace perigee::serve
