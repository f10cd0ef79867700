// What    The messages and tools of a chat-completions request, read and checked.
// Owner   text; part of chat_parse.
// Threads Pure functions.
// Errors  One sentence that names the field.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "text/chat.h"

namespace perigee::text {

Error wrong_kind(const std::string& field, std::string_view wanted, const Json& value);

// A list of tools under `field`; `names` gathers those of the whole request, which must differ.
Result<std::vector<Json>> read_tools(const Json& tools, const std::string& field, std::set<std::string>& names);

// The bytes of all arguments of a message that are given as text.
size_t argument_bytes(const Json& message);

// One message; `where` names it in errors, `tool_names` gets the names of tools that it declares.
Result<Message> read_message(const Json& item, const std::string& where, std::set<std::string>& tool_names);

}  // namespace perigee::text
