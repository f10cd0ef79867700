#include "serve/chat_reader.h"

#include <algorithm>
#include <utility>

#include "text/utf8.h"

namespace perigee::serve {

using text::Json;
using text::OutputEvent;

namespace {

constexpr size_t kMessageBytesMax = 1000;  // of a server's words in a sentence of ours
constexpr int64_t kCallsMax = 1 << 20;
constexpr std::string_view kDone = "[DONE]";

// A stranger's text goes to a terminal: no line breaks, no escape sequences, no end.
std::string one_line(std::string_view text) {
  std::string line = text::replace_invalid_utf8(text.substr(0, kMessageBytesMax));
  std::replace_if(line.begin(), line.end(), [](char c) { return static_cast<unsigned char>(c) < ' ' || c == 0x7f; }, ' ');
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line.substr(std::min(line.find_first_not_of(' '), line.size()));
}

Error no_chunk(std::string_view what) { return invalid_argument("the server's answer is no chat completion: {}", what); }

// The text of a member; empty when it is absent or null.
Result<std::string> text_of(const Json& object, std::string_view key) {
  const Json* value = object.find_set(key);
  if (value == nullptr) return std::string();
  if (!value->is_string()) return no_chunk(fmt::format("`{}` is {}, a string is needed", key, value->kind_name()));
  return value->as_string();
}

int64_t count_of(const Json& object, std::string_view key) {
  const Json* value = object.find_set(key);
  if (value == nullptr || !value->is_number()) return 0;
  const Result<int64_t> count = value->as_int64();
  return count.ok() ? *count : 0;
}

OutputEvent event_of(OutputEvent::Kind kind, std::string text, int64_t call = -1) {
  OutputEvent event;
  event.kind = kind;
  event.call = static_cast<int>(call);
  event.text = std::move(text);
  return event;
}

}  // namespace

Status ChatReader::feed(std::string_view bytes, std::vector<OutputEvent>& events) {
  held_.clear();
  const Status fed = sse_.feed(bytes, held_);
  for (const SseEvent& event : held_) {
    if (done_) break;
    if (event.data == kDone) {
      end_call(events);
      done_ = true;
      break;
    }
    const Status read = read_chunk(event, events);
    if (!read.ok()) return read;
  }
  return fed;
}

Status ChatReader::finish() const {
  if (done_) return {};
  return io_error("the server's answer broke off before its end");
}

Status ChatReader::read_whole(std::string_view body, std::vector<OutputEvent>& events) {
  const Result<Json> reply = text::parse_json(body, "the server's answer");
  if (!reply.ok()) return reply.error();
  const Json* choices = reply->find_set("choices");
  if (choices == nullptr || !choices->is_array() || choices->items().empty()) return no_chunk("it holds no `choices`");
  const Status read = read_choice(choices->items().front(), "message", events);
  if (!read.ok()) return read;
  if (const Json* usage = reply->find_set("usage"); usage != nullptr) read_usage(*usage);
  end_call(events);
  done_ = true;
  return {};
}

Status ChatReader::read_chunk(const SseEvent& event, std::vector<OutputEvent>& events) {
  const Result<Json> chunk = text::parse_json(event.data, "an event of the server's stream");
  if (!chunk.ok()) return chunk.error();
  const Json* error = chunk->find_set("error");
  if (error != nullptr || event.name == "error") {
    const std::string message = error_message_of(error != nullptr ? *error : *chunk);
    return io_error("the server broke its answer off: {}", message.empty() ? "it does not say why" : message);
  }
  if (!chunk->is_object()) return no_chunk(fmt::format("an event is {}, an object is needed", chunk->kind_name()));
  if (const Json* usage = chunk->find_set("usage"); usage != nullptr) read_usage(*usage);
  // The chunk with the usage has no choices.
  const Json* choices = chunk->find_set("choices");
  if (choices == nullptr) return {};
  if (!choices->is_array()) return no_chunk(fmt::format("`choices` is {}, an array is needed", choices->kind_name()));
  return choices->items().empty() ? Status() : read_choice(choices->items().front(), "delta", events);
}

Status ChatReader::read_choice(const Json& choice, const char* part, std::vector<OutputEvent>& events) {
  if (const Json* said = choice.find_set(part); said != nullptr) {
    const Status read = read_part(*said, events);
    if (!read.ok()) return read;
  }
  Result<std::string> reason = text_of(choice, "finish_reason");
  if (!reason.ok()) return reason.error();
  if (!reason->empty()) answer_.finish_reason = std::move(*reason);
  return {};
}

Status ChatReader::read_part(const Json& part, std::vector<OutputEvent>& events) {
  for (const char* key : {"reasoning_content", "reasoning"}) {
    Result<std::string> reasoning = text_of(part, key);
    if (!reasoning.ok()) return reasoning.error();
    if (reasoning->empty()) continue;
    answer_.reasoning_field = key;
    answer_.reasoning += *reasoning;
    events.push_back(event_of(OutputEvent::Kind::kReasoning, std::move(*reasoning)));
    break;  // the other one says the same
  }
  // A refusal is what the assistant says instead.
  for (const char* key : {"content", "refusal"}) {
    Result<std::string> content = text_of(part, key);
    if (!content.ok()) return content.error();
    if (content->empty()) continue;
    end_call(events);
    answer_.content += *content;
    events.push_back(event_of(OutputEvent::Kind::kContent, std::move(*content)));
  }
  const Json* calls = part.find_set("tool_calls");
  return calls == nullptr ? Status() : read_calls(*calls, events);
}

Status ChatReader::read_calls(const Json& calls, std::vector<OutputEvent>& events) {
  if (!calls.is_array()) return no_chunk(fmt::format("`tool_calls` is {}, an array is needed", calls.kind_name()));
  for (size_t i = 0; i < calls.items().size(); ++i) {
    const Json& call = calls.items()[i];
    const Json* function = call.find_set("function");
    if (function == nullptr) continue;
    Result<std::string> name = text_of(*function, "name");
    if (!name.ok()) return name.error();
    Result<std::string> arguments = text_of(*function, "arguments");
    if (!arguments.ok()) return arguments.error();
    // A whole answer's calls have no index.
    const int64_t given = call.find_set("index") == nullptr ? static_cast<int64_t>(i) : count_of(call, "index");
    const int64_t index = std::clamp<int64_t>(given, 0, kCallsMax);
    if (index != call_) {
      end_call(events);
      call_ = index;
      events.push_back(event_of(OutputEvent::Kind::kCallBegin, std::move(*name), index));
    }
    if (!arguments->empty()) events.push_back(event_of(OutputEvent::Kind::kArguments, std::move(*arguments), index));
  }
  return {};
}

void ChatReader::read_usage(const Json& usage) {
  if (!usage.is_object()) return;
  AnswerUsage counts{count_of(usage, "prompt_tokens"), count_of(usage, "completion_tokens"), 0};
  const Json* details = usage.find_set("completion_tokens_details");
  if (details != nullptr) counts.reasoning = count_of(*details, "reasoning_tokens");
  answer_.usage = counts;
}

void ChatReader::end_call(std::vector<OutputEvent>& events) {
  if (call_ >= 0) events.push_back(event_of(OutputEvent::Kind::kCallEnd, {}, std::exchange(call_, -1)));
}

std::string error_message_of(const Json& error) {
  if (error.is_string()) return one_line(error.as_string());
  for (const char* key : {"message", "detail"}) {
    const Json* message = error.find_set(key);
    if (message == nullptr) continue;
    return one_line(message->is_string() ? message->as_string() : text::print_json(*message));
  }
  return {};
}

std::string error_message_of(std::string_view body) {
  const Result<Json> parsed = text::parse_json(body, "the body");
  if (parsed.ok()) {
    const Json* error = parsed->find_set("error");
    return error_message_of(error == nullptr ? *parsed : *error);
  }
  // A page of a proxy tells a person nothing.
  return body.find('<') == std::string_view::npos ? one_line(body) : std::string();
}

}  // namespace perigee::serve
