#include "serve/api_messages_read.h"

#include <utility>

namespace perigee::serve {

using text::Json;

namespace {

using Members = std::vector<Json::Member>;

const std::string* string_member(const Json& object, std::string_view key) {
  const Json* value = object.find_set(key);
  return value != nullptr && value->is_string() ? &value->as_string() : nullptr;
}

Json text_part(std::string text) {
  return Json::object({{"type", Json::string("text")}, {"text", Json::string(std::move(text))}});
}

Json message(const char* role, Json content) {
  return Json::object({{"role", Json::string(role)}, {"content", std::move(content)}});
}

class MessagesReader {
 public:
  explicit MessagesReader(Fields& fields) : fields_(fields) {}

  MessagesChat read() {
    read_system();
    read_messages();
    read_tools();
    read_tool_choice();
    read_thinking();
    Members body;
    body.emplace_back("messages", Json::array(std::move(messages_)));
    for (auto& [key, value] : others_) body.emplace_back(key, std::move(value));
    return {Json::object(std::move(body)), one_call_};
  }

 private:
  // A string or text blocks, as text parts.
  std::vector<Json> text_parts(const Json& content, const std::string& field) {
    std::vector<Json> parts;
    if (content.is_string()) {
      parts.push_back(text_part(content.as_string()));
      return parts;
    }
    if (!content.is_array()) {
      fields_.fail(field, "must be a string or a list of blocks");
      return parts;
    }
    for (size_t i = 0; i < content.items().size(); ++i) {
      const Json& block = content.items()[i];
      const std::string* type = string_member(block, "type");
      const std::string* text = string_member(block, "text");
      if (type == nullptr || *type != "text" || text == nullptr) {
        fields_.fail(fmt::format("{}[{}]", field, i), fmt::format("must be a text block; {} is not supported here",
                                                                  type == nullptr ? "another kind" : *type));
        return parts;
      }
      parts.push_back(text_part(*text));
    }
    return parts;
  }

  void read_system() {
    const Json* system = fields_.get("system");
    if (system == nullptr) return;
    std::vector<Json> parts = text_parts(*system, "system");
    if (!parts.empty()) messages_.push_back(message("system", Json::array(std::move(parts))));
  }

  void read_messages() {
    const Json* messages = fields_.get("messages");
    if (messages == nullptr || !messages->is_array() || messages->items().empty()) {
      return fields_.fail("messages", "must be a list of at least one message");
    }
    for (size_t i = 0; i < messages->items().size() && !fields_.failed(); ++i) {
      const std::string where = fmt::format("messages[{}]", i);
      const Json& one = messages->items()[i];
      const std::string* role = string_member(one, "role");
      const Json* content = one.find_set("content");
      const bool is_known = role != nullptr && (*role == "user" || *role == "assistant" || *role == "system");
      if (!is_known) return fields_.fail(where + ".role", "must be user, assistant or system");
      if (content == nullptr) return fields_.fail(where + ".content", "is missing");
      if (content->is_array() && content->items().empty()) return fields_.fail(where + ".content", "is an empty list");
      const bool is_last = i + 1 == messages->items().size();
      if (*role == "assistant" && is_last) {
        return fields_.fail(where, "is the last and of the assistant: an answer cannot be begun for the model");
      }
      if (content->is_string() || *role == "system") {
        messages_.push_back(message(role->c_str(), Json::array(text_parts(*content, where + ".content"))));
      } else if (!content->is_array()) {
        return fields_.fail(where + ".content", "must be a string or a list of blocks");
      } else {
        *role == "user" ? read_user(content->items(), where) : read_assistant(content->items(), where);
      }
    }
  }

  // Results of tools are messages of their own and come first; the rest of the turn is one message.
  void read_user(const std::vector<Json>& blocks, const std::string& where) {
    std::vector<Json> parts;
    for (size_t i = 0; i < blocks.size(); ++i) {
      const std::string field = fmt::format("{}.content[{}]", where, i);
      const std::string* type = string_member(blocks[i], "type");
      const std::string* text = string_member(blocks[i], "text");
      if (type != nullptr && *type == "tool_result") {
        read_result(blocks[i], field);
      } else if (type != nullptr && *type == "text" && text != nullptr) {
        parts.push_back(text_part(*text));
      } else {
        return fields_.fail(field, fmt::format("has the type {}, which is not supported here; use text or tool_result",
                                               type == nullptr ? "(none)" : *type));
      }
    }
    if (!parts.empty()) messages_.push_back(message("user", Json::array(std::move(parts))));
  }

  void read_result(const Json& block, const std::string& field) {
    const std::string* id = string_member(block, "tool_use_id");
    if (id == nullptr || id->empty()) return fields_.fail(field + ".tool_use_id", "must name the call");
    const Json* content = block.find_set("content");
    std::vector<Json> parts;
    if (content != nullptr) parts = text_parts(*content, field + ".content");
    if (parts.empty()) parts.push_back(text_part(""));
    Json result = message("tool", Json::array(std::move(parts)));
    result.members().emplace_back("tool_call_id", Json::string(*id));
    messages_.push_back(std::move(result));
  }

  void read_assistant(const std::vector<Json>& blocks, const std::string& where) {
    std::string reasoning;
    std::vector<Json> parts, calls;
    for (size_t i = 0; i < blocks.size() && !fields_.failed(); ++i) {
      const std::string field = fmt::format("{}.content[{}]", where, i);
      const std::string* type = string_member(blocks[i], "type");
      const std::string kind = type == nullptr ? "" : *type;
      const std::string* text = string_member(blocks[i], kind == "thinking" ? "thinking" : "text");
      if (kind == "thinking" && text != nullptr) {
        reasoning += *text;
      } else if (kind == "text" && text != nullptr) {
        parts.push_back(text_part(*text));
      } else if (kind == "tool_use") {
        read_call(blocks[i], field, calls);
      } else if (kind != "redacted_thinking") {  // another server's, unreadable here
        return fields_.fail(field, "must be a text, thinking or tool_use block");
      }
    }
    const bool has_text = !parts.empty();
    Json turn = message("assistant", has_text ? Json::array(std::move(parts)) : Json());
    if (!reasoning.empty()) turn.members().emplace_back("reasoning_content", Json::string(std::move(reasoning)));
    if (!calls.empty()) turn.members().emplace_back("tool_calls", Json::array(std::move(calls)));
    messages_.push_back(std::move(turn));
  }

  void read_call(const Json& block, const std::string& field, std::vector<Json>& calls) {
    const std::string* id = string_member(block, "id");
    const std::string* name = string_member(block, "name");
    const Json* input = block.find_set("input");
    if (name == nullptr || name->empty()) return fields_.fail(field + ".name", "must be a non-empty string");
    if (input != nullptr && !input->is_object()) return fields_.fail(field + ".input", "must be an object");
    Json function = Json::object({{"name", Json::string(*name)}});
    function.members().emplace_back("arguments", input == nullptr ? Json::object({}) : *input);
    calls.push_back(Json::object({{"id", Json::string(id == nullptr ? "" : *id)}, {"function", std::move(function)}}));
  }

  void read_tools() {
    const Json* tools = fields_.get("tools");
    if (tools == nullptr || fields_.failed()) return;
    if (!tools->is_array()) return fields_.fail("tools", "must be a list");
    if (tools->items().empty()) return;
    std::vector<Json> out;
    for (size_t i = 0; i < tools->items().size(); ++i) {
      const Json& tool = tools->items()[i];
      const std::string* type = string_member(tool, "type");
      const Json* schema = tool.find_set("input_schema");
      const std::string field = fmt::format("tools[{}]", i);
      if (type != nullptr && *type != "custom")
        return fields_.fail(field + ".type", "must be custom: this server runs no tools");
      if (schema == nullptr || !schema->is_object()) return fields_.fail(field + ".input_schema", "must be an object");
      Members function;
      for (const char* key : {"name", "description", "strict"}) {
        if (const Json* value = tool.find_set(key); value != nullptr) function.emplace_back(key, *value);
      }
      function.emplace_back("parameters", *schema);
      out.push_back(
          Json::object({{"type", Json::string("function")}, {"function", Json::object(std::move(function))}}));
    }
    others_.emplace_back("tools", Json::array(std::move(out)));
  }

  void read_tool_choice() {
    const Json* choice = fields_.get("tool_choice");
    if (choice == nullptr || fields_.failed()) return;
    const std::string* type = string_member(*choice, "type");
    const std::string kind = type == nullptr ? "" : *type;
    const Json* single = choice->find_set("disable_parallel_tool_use");
    if (single != nullptr && !single->is_bool()) {
      return fields_.fail("tool_choice.disable_parallel_tool_use", "must be true or false");
    }
    one_call_ = single != nullptr && single->as_bool();
    if (kind == "auto" || kind == "none") {
      others_.emplace_back("tool_choice", Json::string(kind));
    } else if (kind == "any") {
      others_.emplace_back("tool_choice", Json::string("required"));
    } else if (const std::string* name = string_member(*choice, "name"); kind == "tool" && name != nullptr) {
      Json function = Json::object({{"name", Json::string(*name)}});
      others_.emplace_back("tool_choice",
                           Json::object({{"type", Json::string("function")}, {"function", std::move(function)}}));
    } else {
      fields_.fail("tool_choice.type", "must be auto, any, none, or tool with a name");
    }
  }

  // A budget in tokens has no counterpart; the effort has.
  void read_thinking() {
    const Json* thinking = fields_.get("thinking");
    if (thinking != nullptr && !fields_.failed()) {
      const std::string* type = string_member(*thinking, "type");
      const std::string kind = type == nullptr ? "" : *type;
      if (kind != "enabled" && kind != "adaptive" && kind != "disabled") {
        return fields_.fail("thinking.type", "must be enabled, adaptive or disabled");
      }
      const char* name = kind == "disabled" ? "disabled" : "enabled";
      others_.emplace_back("thinking", Json::object({{"type", Json::string(name)}}));
    }
    const Json* output = fields_.get("output_config");
    const std::string* effort = output == nullptr ? nullptr : string_member(*output, "effort");
    if (effort != nullptr) others_.emplace_back("reasoning_effort", Json::string(*effort));
  }

  Fields& fields_;
  std::vector<Json> messages_;
  Members others_;
  bool one_call_ = false;
};

}  // namespace

MessagesChat chat_of_messages(Fields& fields) {
  return MessagesReader(fields).read();
}

}  // namespace perigee::serve
