// What    Anthropic's messages request as a chat-completions request, so that one reader checks and renders both.
// Owner   serve.
// Threads Pure functions.
// Errors  Left in the Fields, with Anthropic's field names.
// Source  Anthropic's Messages API.
#pragma once

#include "serve/api_fields.h"
#include "text/json.h"

namespace perigee::serve {

struct MessagesChat {
  text::Json body;        // what parse_chat_request() reads
  bool one_call = false;  // tool_choice.disable_parallel_tool_use
};
MessagesChat chat_of_messages(Fields& fields);

}  // namespace perigee::serve
