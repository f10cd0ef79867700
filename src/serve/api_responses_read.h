// What    OpenAI's responses request as a chat-completions request, so that one reader checks and renders both.
// Owner   serve.
// Threads Pure functions.
// Errors  Left in the Fields, with the names of the responses request.
// Source  OpenAI's Responses API.
#pragma once

#include "serve/api_fields.h"
#include "text/json.h"

namespace perigee::serve {

text::Json chat_of_responses(Fields& fields);

}  // namespace perigee::serve
