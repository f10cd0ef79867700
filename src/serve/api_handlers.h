// What    One function per route; api.h binds them to paths.
// Owner   serve.
// Threads Any.
// Errors  Every reply carries its own.
#pragma once

#include <memory>

#include "serve/session.h"

namespace perigee::serve {

using ReplyPtr = std::shared_ptr<Reply>;

void chat_completions(ApiCore& core, const HttpRequest& request, const ReplyPtr& reply);
void completions(ApiCore& core, const HttpRequest& request, const ReplyPtr& reply);
void generate(ApiCore& core, const HttpRequest& request, const ReplyPtr& reply);
void responses(ApiCore& core, const HttpRequest& request, const ReplyPtr& reply);
void messages(ApiCore& core, const HttpRequest& request, const ReplyPtr& reply);
void count_tokens(ApiCore& core, const HttpRequest& request, const ReplyPtr& reply);
void list_models(ApiCore& core, const HttpRequest& request, const ReplyPtr& reply);
void show_model(ApiCore& core, const HttpRequest& request, const ReplyPtr& reply);
void tokenize(ApiCore& core, const HttpRequest& request, const ReplyPtr& reply);
void detokenize(ApiCore& core, const HttpRequest& request, const ReplyPtr& reply);
void tokenizer_info(ApiCore& core, const HttpRequest& request, const ReplyPtr& reply);

}  // namespace perigee::serve
