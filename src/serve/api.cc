#include "serve/api.h"

#include <algorithm>
#include <utility>

#include "serve/api_handlers.h"
#include "text/xtml.h"

namespace perigee::serve {

Api::Api(ApiOptions options, engine::Backend& backend, const text::Tokenizer& tokenizer) {
  CHECK(!options.model_names.empty());
  const std::optional<int32_t> end = tokenizer.special_id(text::xtml::kEndOfMessage);
  std::vector<int32_t>& ends = options.end_ids;
  if (end.has_value() && std::find(ends.begin(), ends.end(), *end) == ends.end()) ends.push_back(*end);
  core_ = std::make_unique<ApiCore>(std::move(options), backend, tokenizer);
}

Api::~Api() = default;

void Api::settle() {
  core_->delivery.settle();
}

std::vector<ApiRoute> Api::routes() {
  const auto bound = [this](auto handler) {
    return [core = core_.get(), handler](const HttpRequest& request, const ReplyPtr& reply) {
      handler(*core, request, reply);
    };
  };
  return {
      {"POST", "/v1/chat/completions", bound(chat_completions), true},
      {"POST", "/v1/completions", bound(completions), true},
      {"POST", "/v1/responses", bound(responses), true},
      {"POST", "/v1/messages", bound(messages), true},
      {"POST", "/v1/messages/count_tokens", bound(count_tokens), true},
      {"POST", "/inference/v1/generate", bound(generate), true},
      {"GET", "/v1/models", bound(list_models), false},
      {"GET", "/v1/models/{id+}", bound(show_model), false},
      {"POST", "/tokenize", bound(tokenize), true},
      {"POST", "/detokenize", bound(detokenize), true},
      {"GET", "/tokenizer_info", bound(tokenizer_info), false},
  };
}

}  // namespace perigee::serve
