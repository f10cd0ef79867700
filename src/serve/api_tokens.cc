// Models and the tokenizer: GET /v1/models, /v1/models/{id}, POST /tokenize, /detokenize, GET /tokenizer_info.
#include <algorithm>
#include <charconv>
#include <utility>

#include "serve/api_handlers.h"
#include "serve/api_json.h"
#include "serve/api_prompt.h"

namespace perigee::serve {

using text::Json;

namespace {

void append_model(const ApiCore& core, const std::string& name, std::string& out) {
  out += fmt::format(
      "{{\"id\":{},\"object\":\"model\",\"created\":{},\"owned_by\":\"perigee\",\"root\":{},\"parent\":null,\"max_"
      "model_len\":{}}}",
      quoted(name), core.options.created, quoted(core.backend->info().model), core.backend->info().max_model_len);
}

// %41 as A; a sign that begins no such triple stays.
std::string percent_decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    const char* digits = text.data() + i + 1;
    if (text[i] == '%' && i + 2 < text.size() && std::from_chars(digits, digits + 2, value, 16).ptr == digits + 2) {
      out += static_cast<char>(value);
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::optional<ApiError> read_tokens(ApiCore& core, const HttpRequest& request, std::vector<int32_t>& ids,
                                    bool& strings) {
  const Result<Json> body = parse_body(request);
  if (!body.ok()) return blamed(body.error());
  Fields fields(*body);
  CommonFields common;
  check_model(fields, core.options, common);
  fields.flag("add_special_tokens", true);
  strings = fields.flag("return_token_strs", false);
  const Json* prompt = fields.get("prompt");
  const bool is_chat = fields.get("messages") != nullptr;
  if (is_chat && prompt != nullptr) fields.fail("prompt", "stands beside messages; give one");
  if (!is_chat && (prompt == nullptr || !prompt->is_string()))
    fields.fail("prompt", "must be a string (or give messages)");
  if (fields.failed()) return fields.error();
  if (!is_chat) {
    ids = core.tokenizer->encode_text(prompt->as_string());
    return std::nullopt;
  }
  ChatPrompt chat;
  if (auto error = read_chat_prompt(*body, *core.tokenizer, chat)) return error;
  ids = std::move(chat.ids);
  return std::nullopt;
}

}  // namespace

void list_models(ApiCore& core, const HttpRequest&, const ReplyPtr& reply) {
  std::string out = "{\"object\":\"list\",\"data\":[";
  for (size_t i = 0; i < core.options.model_names.size(); ++i) {
    if (i > 0) out += ',';
    append_model(core, core.options.model_names[i], out);
  }
  reply->send(200, kJsonType, out + "]}", {});
}

void show_model(ApiCore& core, const HttpRequest& request, const ReplyPtr& reply) {
  constexpr std::string_view kBase = "/v1/models/";
  const std::string name =
      percent_decoded(std::string_view(request.path).substr(std::min(kBase.size(), request.path.size())));
  const auto& names = core.options.model_names;
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    ApiError error{.status = 404, .message = fmt::format("model \"{}\" is not served here", name)};
    error.param = "model";
    error.code = "model_not_found";
    return send_error(*reply, error);
  }
  std::string out;
  append_model(core, name, out);
  reply->send(200, kJsonType, std::move(out), {});
}

void tokenize(ApiCore& core, const HttpRequest& request, const ReplyPtr& reply) {
  std::vector<int32_t> ids;
  bool strings = false;
  if (const auto error = read_tokens(core, request, ids, strings)) return send_error(*reply, *error);
  std::string out =
      fmt::format("{{\"count\":{},\"max_model_len\":{},\"tokens\":", ids.size(), core.backend->info().max_model_len);
  append_ids(ids, out);
  if (strings) {
    out += ",\"token_strs\":[";
    for (size_t i = 0; i < ids.size(); ++i) {
      if (i > 0) out += ',';
      append_quoted(token_name(*core.tokenizer, ids[i], TokenNames::kText), out);
    }
    out += ']';
  }
  reply->send(200, kJsonType, out + '}', {});
}

void detokenize(ApiCore& core, const HttpRequest& request, const ReplyPtr& reply) {
  const Result<Json> body = parse_body(request);
  if (!body.ok()) return send_error(*reply, blamed(body.error()));
  Fields fields(*body);
  CommonFields common;
  check_model(fields, core.options, common);
  const std::vector<int32_t> ids = fields.ids("tokens", core.tokenizer->vocab_size(), SIZE_MAX);
  if (fields.get("tokens") == nullptr) fields.fail("tokens", "is missing");
  if (fields.failed()) return send_error(*reply, *fields.error());
  reply->send(200, kJsonType, "{\"prompt\":" + quoted(core.tokenizer->decode(ids).value()) + '}', {});
}

void tokenizer_info(ApiCore& core, const HttpRequest&, const ReplyPtr& reply) {
  const text::Tokenizer& tokenizer = *core.tokenizer;
  std::string out = fmt::format(
      "{{\"tokenizer_class\":\"tiktoken\",\"vocab_size\":{},\"base_vocab_size\":{},\"max_model_len\":{},\"eos_token_"
      "ids\":",
      tokenizer.vocab_size(), tokenizer.base_size(), core.backend->info().max_model_len);
  append_ids(core.options.end_ids, out);
  out += ",\"special_tokens\":{";
  for (int32_t id = tokenizer.base_size(); id < tokenizer.vocab_size(); ++id) {
    if (id > tokenizer.base_size()) out += ',';
    append_quoted(token_name(tokenizer, id, TokenNames::kText), out);
    out += ':';
    append_number(id, out);
  }
  reply->send(200, kJsonType, out + "}}", {});
}

}  // namespace perigee::serve
