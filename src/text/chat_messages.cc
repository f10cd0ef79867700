#include "text/chat_messages.h"

#include <algorithm>

#include "text/utf8.h"

namespace perigee::text {
namespace {

constexpr size_t kToolNameBytesMax = 256;

// The string member `key` of `object`; empty when absent or null.
Result<std::string> optional_string(const Json& object, std::string_view key, const std::string& where) {
  const Json* value = object.find_set(key);
  if (value == nullptr) return std::string();
  if (!value->is_string()) return wrong_kind(fmt::format("{}.{}", where, key), "a string", *value);
  return value->as_string();
}

// The text parts of `content`: a string, or a list of {"type": "text", "text": ...}.
Result<std::vector<std::string>> read_content(const Json& content, const std::string& field) {
  if (content.is_string()) return std::vector<std::string>{content.as_string()};
  if (!content.is_array()) return wrong_kind(field, "a string or a list of text parts", content);
  if (content.items().empty()) return invalid_argument("{} is an empty list; give a string or text parts", field);
  std::vector<std::string> parts;
  for (size_t i = 0; i < content.items().size(); ++i) {
    const Json& part = content.items()[i];
    const std::string where = fmt::format("{}[{}]", field, i);
    if (!part.is_object()) return wrong_kind(where, "an object with `type` and `text`", part);
    const Json* type = part.find("type");
    if (type == nullptr || !type->is_string()) return invalid_argument("{}.type must be \"text\"", where);
    if (type->as_string() != "text") {
      return invalid_argument("{}.type \"{}\" is not supported here; use \"text\"", where, type->as_string());
    }
    const Json* text = part.find("text");
    if (text == nullptr || !text->is_string()) return invalid_argument("{}.text must be a string", where);
    parts.push_back(text->as_string());
  }
  return parts;
}

bool is_tool_name(std::string_view name) {
  const auto is_letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  };
  const auto is_other = [](char c) { return (c >= '0' && c <= '9') || c == '-'; };
  return !name.empty() && name.size() <= kToolNameBytesMax && is_letter(name[0]) &&
         std::all_of(name.begin(), name.end(), [&](char c) { return is_letter(c) || is_other(c); });
}

// Checks one declared tool and leaves out members of `function` that are null.
Result<Json> read_tool(const Json& tool, const std::string& where, std::set<std::string>& names) {
  if (!tool.is_object()) return wrong_kind(where, "an object", tool);
  const Json* type = tool.find("type");
  if (type == nullptr || !type->is_string() || type->as_string() != "function") {
    return invalid_argument("{}.type must be \"function\"", where);
  }
  const Json* function = tool.find("function");
  if (function == nullptr || !function->is_object()) {
    return invalid_argument("{}.function must be an object with `name` and `parameters`", where);
  }
  const Json* name = function->find("name");
  if (name == nullptr || !name->is_string() || !is_tool_name(name->as_string())) {
    return invalid_argument(
        "{}.function.name must be 1 to {} letters, digits, _ or -, and begin with a letter or _",
        where, kToolNameBytesMax);
  }
  if (!names.insert(name->as_string()).second) {
    return invalid_argument("{}.function.name \"{}\" is declared twice", where, name->as_string());
  }
  const Json* description = function->find_set("description");
  if (description != nullptr && !description->is_string()) {
    return wrong_kind(where + ".function.description", "a string", *description);
  }
  const Json* parameters = function->find_set("parameters");
  if (parameters != nullptr && !parameters->is_object()) {
    return wrong_kind(where + ".function.parameters", "an object", *parameters);
  }
  const Json* strict = function->find_set("strict");
  if (strict != nullptr && !strict->is_bool()) return wrong_kind(where + ".function.strict", "a boolean", *strict);
  Json kept = tool;
  for (auto& [key, value] : kept.members()) {
    if (key == "function")
      std::erase_if(value.members(), [](const auto& member) { return member.second.is_null(); });
  }
  return kept;
}

// `arguments` of a call in the history: an object, or text that should be one.
Status read_arguments(const Json& arguments, const std::string& field, ToolCall& call) {
  if (arguments.is_object()) {
    call.arguments = arguments;
    return {};
  }
  if (!arguments.is_string()) return wrong_kind(field, "an object or a string that holds one", arguments);
  const std::string& text = arguments.as_string();
  if (is_blank(text)) return {};
  Result<Json> parsed = parse_json(text, field);
  if (!parsed.ok()) {
    call.raw_arguments = text;  // the model wrote something else than JSON; it sees that again
    return {};
  }
  if (!parsed->is_object())
    return invalid_argument("{} must hold a JSON object, not {}", field, parsed->kind_name());
  call.arguments = std::move(*parsed);
  return {};
}

Result<std::vector<ToolCall>> read_tool_calls(const Json& calls, const std::string& field) {
  if (!calls.is_array()) return wrong_kind(field, "a list of calls", calls);
  std::vector<ToolCall> out;
  for (size_t i = 0; i < calls.items().size(); ++i) {
    const Json& item = calls.items()[i];
    const std::string where = fmt::format("{}[{}]", field, i);
    if (!item.is_object()) return wrong_kind(where, "an object", item);
    const Result<std::string> type = optional_string(item, "type", where);
    if (!type.ok()) return type.error();
    if (!type->empty() && *type != "function") return invalid_argument("{}.type must be \"function\"", where);
    const Json* function = item.find("function");
    if (function == nullptr || !function->is_object()) {
      return invalid_argument("{}.function must be an object with `name` and `arguments`", where);
    }
    ToolCall call;
    const Result<std::string> id = optional_string(item, "id", where);
    if (!id.ok()) return id.error();
    call.id = *id;
    const Json* name = function->find("name");
    if (name == nullptr || !name->is_string() || name->as_string().empty()) {
      return invalid_argument("{}.function.name must be a non-empty string", where);
    }
    call.name = name->as_string();
    const Json* arguments = function->find_set("arguments");
    if (arguments != nullptr) {
      const Status read = read_arguments(*arguments, where + ".function.arguments", call);
      if (!read.ok()) return read.error();
    }
    out.push_back(std::move(call));
  }
  return out;
}

Result<Role> read_role(const Json& item, const std::string& where) {
  const Json* role = item.find("role");
  if (role == nullptr || !role->is_string()) return invalid_argument("{}.role must be a string", where);
  const std::string& name = role->as_string();
  if (name == "system" || name == "developer")
    return Role::kSystem;  // the same guardrail by its newer name
  if (name == "user") return Role::kUser;
  if (name == "assistant") return Role::kAssistant;
  if (name == "tool") return Role::kTool;
  return invalid_argument(
      "{}.role \"{}\" is unknown; use system, developer, user, assistant or tool", where, name);
}

class MessageReader {
 public:
  MessageReader(const Json& item, std::string where, std::set<std::string>& tool_names)
      : item_(item), where_(std::move(where)), tool_names_(tool_names) {}

  Result<Message> read() {
    if (!item_.is_object()) return wrong_kind(where_, "an object", item_);
    const Result<Role> role = read_role(item_, where_);
    if (!role.ok()) return role.error();
    message_.role = *role;
    for (const auto step : {&MessageReader::read_fields, &MessageReader::read_system_tools,
                            &MessageReader::read_assistant, &MessageReader::read_tool_result,
                            &MessageReader::read_body}) {
      const Status done = (this->*step)();
      if (!done.ok()) return done.error();
    }
    return std::move(message_);
  }

 private:
  Status read_fields() {
    Result<std::string> name = optional_string(item_, "name", where_);
    if (!name.ok()) return name.error();
    message_.name = std::move(*name);
    const Json* partial = item_.find_set("partial");
    if (partial == nullptr || (partial->is_bool() && !partial->as_bool())) return {};
    return invalid_argument("{}.partial is not supported: an answer cannot be begun for the model",
                            where_);
  }

  Status read_system_tools() {
    const Json* tools = item_.find_set("tools");
    if (tools == nullptr) return {};
    if (message_.role != Role::kSystem) {
      return invalid_argument("{}.tools is allowed in system messages only", where_);
    }
    const Json* content = item_.find_set("content");
    const bool is_empty = content == nullptr ||
                          (content->is_string() && content->as_string().empty()) ||
                          (content->is_array() && content->items().empty());
    if (!is_empty)
      return invalid_argument("{} has both content and tools; give the text a message of its own", where_);
    Result<std::vector<Json>> kept = read_tools(*tools, where_ + ".tools", tool_names_);
    if (!kept.ok()) return kept.error();
    message_.tools = std::move(*kept);
    return {};
  }

  Status read_assistant() {
    const Json* calls = item_.find_set("tool_calls");
    if (message_.role != Role::kAssistant) {
      if (calls == nullptr) return {};
      return invalid_argument("{}.tool_calls is allowed in assistant messages only", where_);
    }
    if (calls != nullptr) {
      Result<std::vector<ToolCall>> read = read_tool_calls(*calls, where_ + ".tool_calls");
      if (!read.ok()) return read.error();
      message_.tool_calls = std::move(*read);
    }
    for (const char* key : {"reasoning_content", "reasoning"}) {
      Result<std::string> reasoning = optional_string(item_, key, where_);
      if (!reasoning.ok()) return reasoning.error();
      if (message_.reasoning.empty()) message_.reasoning = std::move(*reasoning);
    }
    return {};
  }

  Status read_tool_result() {
    if (message_.role != Role::kTool) return {};
    Result<std::string> id = optional_string(item_, "tool_call_id", where_);
    if (!id.ok()) return id.error();
    if (id->empty())
      return invalid_argument("{}.tool_call_id must name the call that this message answers",
                              where_);
    message_.tool_call_id = std::move(*id);
    Result<std::string> tool = optional_string(item_, "tool", where_);
    if (!tool.ok()) return tool.error();
    message_.tool_name = tool->empty() ? message_.name : std::move(*tool);
    message_.name.clear();
    return {};
  }

  Status read_body() {
    if (!message_.tools.empty()) return {};
    const Json* content = item_.find("content");
    if (message_.role == Role::kAssistant) {
      const bool says_something = !message_.tool_calls.empty() || !message_.reasoning.empty();
      if (content == nullptr && says_something) return {};
      if (content != nullptr && content->is_null()) return {};
    }
    if (content == nullptr) return invalid_argument("{}.content is missing", where_);
    Result<std::vector<std::string>> parts = read_content(*content, where_ + ".content");
    if (!parts.ok()) return parts.error();
    message_.content = std::move(*parts);
    return {};
  }

  const Json& item_;
  std::string where_;
  std::set<std::string>& tool_names_;
  Message message_;
};

}  // namespace

Error wrong_kind(const std::string& field, std::string_view wanted, const Json& value) {
  return invalid_argument("{} must be {}, not {}", field, wanted, value.kind_name());
}

Result<std::vector<Json>> read_tools(const Json& tools, const std::string& field, std::set<std::string>& names) {
  if (!tools.is_array()) return wrong_kind(field, "a list of tools", tools);
  if (tools.items().empty())
    return invalid_argument("{} is an empty list; leave it out when there are no tools", field);
  std::vector<Json> kept;
  for (size_t i = 0; i < tools.items().size(); ++i) {
    Result<Json> tool = read_tool(tools.items()[i], fmt::format("{}[{}]", field, i), names);
    if (!tool.ok()) return tool.error();
    kept.push_back(std::move(*tool));
  }
  return kept;
}

size_t argument_bytes(const Json& message) {
  const Json* calls = message.find("tool_calls");
  size_t bytes = 0;
  for (size_t i = 0; calls != nullptr && calls->is_array() && i < calls->items().size(); ++i) {
    const Json* function = calls->items()[i].find("function");
    const Json* arguments = function == nullptr ? nullptr : function->find("arguments");
    if (arguments != nullptr && arguments->is_string()) bytes += arguments->as_string().size();
  }
  return bytes;
}

Result<Message> read_message(const Json& item, const std::string& where, std::set<std::string>& tool_names) {
  return MessageReader(item, where, tool_names).read();
}

}  // namespace perigee::text
