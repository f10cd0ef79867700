#include "serve/chat_client.h"

#include <utility>

#include "serve/errors.h"
#include "serve/http_text.h"

namespace perigee::serve {

using text::Json;

namespace {

const std::string kModelsPath = "/models";
const std::string kChatPath = "/chat/completions";

std::string turn_json(const ChatTurn& turn) {
  std::string out = fmt::format("{{\"role\":{},\"content\":{}", json_quoted(turn.role), json_quoted(turn.content));
  if (!turn.reasoning.empty() && !turn.reasoning_field.empty()) {
    out += fmt::format(",{}:{}", json_quoted(turn.reasoning_field), json_quoted(turn.reasoning));
  }
  return out + '}';
}

template <class T>
void append_set(std::string& out, const char* key, const std::optional<T>& value) {
  if (value.has_value()) out += fmt::format(",\"{}\":{}", key, *value);
}

}  // namespace

std::string chat_body(const ChatQuestion& question) {
  std::string out = fmt::format("{{\"model\":{},\"messages\":[", json_quoted(question.model));
  for (const ChatTurn& turn : question.turns) {
    if (&turn != &question.turns.front()) out += ',';
    out += turn_json(turn);
  }
  out += "],\"stream\":true";
  append_set(out, "temperature", question.temperature);
  append_set(out, "top_p", question.top_p);
  append_set(out, "min_p", question.min_p);
  append_set(out, "top_k", question.top_k);
  append_set(out, "max_tokens", question.max_tokens);
  append_set(out, "seed", question.seed);
  if (question.usage) out += ",\"stream_options\":{\"include_usage\":true}";
  return out + '}';
}

Result<ChatClient> ChatClient::create(Url url, std::string key, const std::string& ca_file) {
  if (!url.path.ends_with("/v1")) url.path += "/v1";
  Result<HttpClient> http = HttpClient::create(std::move(url), ca_file);
  if (!http.ok()) return http.error();
  return ChatClient(std::move(*http), std::move(key));
}

Headers ChatClient::headers(const char* accepted) const {
  Headers headers = {{"Accept", accepted}, {"User-Agent", "perigee"}};
  if (!key_.empty()) headers.emplace_back("Authorization", "Bearer " + key_);
  return headers;
}

Error ChatClient::refusal(const std::string& path, const ClientReply& reply) const {
  const std::string address = address_of(path);
  if (reply.status / 100 == 3 && !reply.location.empty()) {
    return invalid_argument("{} has moved to {}; give the new address with --url", address, reply.location);
  }
  const std::string message = error_message_of(reply.body);
  const std::string said = fmt::format("{} answered {} {}{}{}", address, reply.status, reason_phrase(reply.status),
                                       message.empty() ? "" : ": ", message);
  switch (reply.status) {
    case 401: return invalid_argument("{}; give the key with --api-key or --api-key-file", said);
    case 404: return not_found("{}{}", said, message.empty() ? "; is this the address of an OpenAI-compatible server?" : "");
    default: return {reply.status >= 500 ? ErrorCode::kIo : ErrorCode::kInvalidArgument, said};
  }
}

Result<std::string> ChatClient::first_model(int cancel) const {
  ClientRequest request;
  request.path = kModelsPath;
  request.headers = headers("application/json");
  const Result<ClientReply> reply = http_.send(request, [](std::string_view) { return false; }, cancel);
  if (!reply.ok()) return reply.error();
  if (reply->status != 200) return refusal(kModelsPath, *reply);
  const std::string address = address_of(kModelsPath);
  const Result<Json> body = text::parse_json(reply->body, address);
  if (!body.ok()) return body.error();
  const Json* models = body->find_set("data");
  if (models == nullptr || !models->is_array() || models->items().empty()) {
    return invalid_argument("{} names no model; give one with --model", address);
  }
  const Json* id = models->items().front().find_set("id");
  if (id == nullptr || !id->is_string()) return invalid_argument("{}: the first model has no id; give one with --model", address);
  return id->as_string();
}

Result<ChatAnswer> ChatClient::ask(const ChatQuestion& question, const OnEvents& on_events, int cancel) const {
  ClientRequest request;
  request.method = "POST";
  request.path = kChatPath;
  request.headers = headers("text/event-stream");
  request.body = chat_body(question);
  ChatReader reader;
  Status read;
  std::vector<text::OutputEvent> events;
  const auto on_piece = [&](std::string_view piece) {
    events.clear();
    read = reader.feed(piece, events);
    on_events(events);
    return read.ok() && !reader.done();
  };
  const Result<ClientReply> reply = http_.send(request, on_piece, cancel);
  if (!reply.ok()) return reply.error();
  if (reply->status != 200) return refusal(kChatPath, *reply);
  if (read.ok() && reply->streamed) {
    read = reader.finish();
  } else if (!reply->streamed) {
    events.clear();
    read = reader.read_whole(reply->body, events);
    on_events(events);
  }
  if (!read.ok()) return Error{read.error().code, fmt::format("{}: {}", address_of(kChatPath), read.error().message)};
  return reader.answer();
}

}  // namespace perigee::serve
