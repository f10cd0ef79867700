#include "serve/api_responses_read.h"

#include <utility>

namespace perigee::serve {

using text::Json;

namespace {

using Members = std::vector<Json::Member>;

std::string string_of(const Json& object, std::string_view key) {
  const Json* value = object.find_set(key);
  return value != nullptr && value->is_string() ? value->as_string() : std::string();
}

Json text_part(std::string text) {
  return Json::object({{"type", Json::string("text")}, {"text", Json::string(std::move(text))}});
}

class ResponsesReader {
 public:
  explicit ResponsesReader(Fields& fields) : fields_(fields) {}

  Json read() {
    read_instructions();
    read_input();
    read_tools();
    read_tool_choice();
    read_format();
    read_reasoning();
    close_turn();
    Members body;
    body.emplace_back("messages", Json::array(std::move(messages_)));
    for (auto& member : others_) body.push_back(std::move(member));
    return Json::object(std::move(body));
  }

 private:
  // An assistant's turn is spread over several items.
  struct Turn {
    std::string reasoning;
    std::vector<Json> parts;
    std::vector<Json> calls;
    bool spoke = false;
  };

  void add(const char* role, std::vector<Json> parts) {
    messages_.push_back(Json::object({{"role", Json::string(role)}, {"content", Json::array(std::move(parts))}}));
  }

  void close_turn() {
    if (!turn_.has_value()) return;
    const bool has_text = !turn_->parts.empty();
    Json message = Json::object(
        {{"role", Json::string("assistant")}, {"content", has_text ? Json::array(std::move(turn_->parts)) : Json()}});
    if (!turn_->reasoning.empty()) message.members().emplace_back("reasoning_content", Json::string(turn_->reasoning));
    if (!turn_->calls.empty()) message.members().emplace_back("tool_calls", Json::array(std::move(turn_->calls)));
    messages_.push_back(std::move(message));
    turn_.reset();
  }

  Turn& turn(bool begins_new) {
    if (begins_new) close_turn();
    if (!turn_.has_value()) turn_.emplace();
    return *turn_;
  }

  void read_instructions() {
    const std::string text = fields_.string("instructions", SIZE_MAX);
    if (!text.empty()) add("system", {text_part(text)});
  }

  void read_input() {
    const Json* input = fields_.get("input");
    if (fields_.failed()) return;
    if (input == nullptr) return fields_.fail("input", "is missing");
    if (input->is_string()) {
      if (input->as_string().empty()) return fields_.fail("input", "is empty");
      return add("user", {text_part(input->as_string())});
    }
    if (!input->is_array() || input->items().empty()) {
      return fields_.fail("input", "must be a string or a list of at least one item");
    }
    for (size_t i = 0; i < input->items().size() && !fields_.failed(); ++i) {
      read_item(input->items()[i], fmt::format("input[{}]", i));
    }
    if (turn_.has_value() && turn_->spoke && turn_->calls.empty()) {
      fields_.fail("input", "ends with a message of the assistant: an answer cannot be begun for the model");
    }
  }

  void read_item(const Json& item, const std::string& where) {
    if (!item.is_object()) return fields_.fail(where, fmt::format("must be an object, not {}", item.kind_name()));
    std::string type = string_of(item, "type");
    if (type.empty()) type = "message";
    if (type == "message") return read_message(item, where);
    if (type == "reasoning") return read_thought(item, where);
    if (type == "function_call") return read_call(item, where);
    if (type == "function_call_output") return read_output(item, where);
    fields_.fail(where + ".type", fmt::format("\"{}\" is not supported here; use message, reasoning, function_call or "
                                              "function_call_output",
                                              type.substr(0, 64)));
  }

  std::vector<Json> parts_of(const Json* content, const std::string& where) {
    std::vector<Json> parts;
    if (content == nullptr || (content->is_array() && content->items().empty())) {
      fields_.fail(where, "is missing or empty");
    } else if (content->is_string()) {
      parts.push_back(text_part(content->as_string()));
    } else if (!content->is_array()) {
      fields_.fail(where, "must be a string or a list of parts");
    } else {
      for (size_t i = 0; i < content->items().size(); ++i) {
        const Json& part = content->items()[i];
        const std::string type = string_of(part, "type");
        const bool is_text =
            type == "input_text" || type == "output_text" || type == "text" || type == "reasoning_text";
        const Json* text = part.find_set("text");
        if (!is_text || text == nullptr || !text->is_string()) {
          fields_.fail(fmt::format("{}[{}]", where, i), "must be a part with text; this server reads text only");
          break;
        }
        parts.push_back(text_part(text->as_string()));
      }
    }
    return parts;
  }

  void read_message(const Json& item, const std::string& where) {
    const std::string role = string_of(item, "role");
    std::vector<Json> parts = parts_of(item.find_set("content"), where + ".content");
    if (role == "assistant") {
      Turn& now = turn(turn_.has_value() && (turn_->spoke || !turn_->calls.empty()));
      now.parts = std::move(parts);
      now.spoke = true;
    } else if (role == "user" || role == "system" || role == "developer") {
      close_turn();
      add(role.c_str(), std::move(parts));
    } else {
      fields_.fail(where + ".role", "must be user, assistant, system or developer");
    }
  }

  void read_thought(const Json& item, const std::string& where) {
    const Json* content = item.find_set("content");
    Turn& now = turn(turn_.has_value() && (turn_->spoke || !turn_->calls.empty()));
    if (content == nullptr || (content->is_array() && content->items().empty())) return;  // nothing readable in it
    for (const Json& part : parts_of(content, where + ".content")) now.reasoning += string_of(part, "text");
  }

  void read_call(const Json& item, const std::string& where) {
    const std::string name = string_of(item, "name");
    const std::string id = string_of(item, "call_id");
    if (name.empty()) return fields_.fail(where + ".name", "must be a non-empty string");
    if (id.empty()) return fields_.fail(where + ".call_id", "must be a non-empty string");
    Json function =
        Json::object({{"name", Json::string(name)}, {"arguments", Json::string(string_of(item, "arguments"))}});
    turn(false).calls.push_back(Json::object({{"id", Json::string(id)}, {"function", std::move(function)}}));
  }

  void read_output(const Json& item, const std::string& where) {
    close_turn();
    const std::string id = string_of(item, "call_id");
    if (id.empty()) return fields_.fail(where + ".call_id", "must name the call");
    add("tool", parts_of(item.find_set("output"), where + ".output"));
    messages_.back().members().emplace_back("tool_call_id", Json::string(id));
  }

  void read_tools() {
    const Json* tools = fields_.get("tools");
    if (tools == nullptr || fields_.failed()) return;
    if (!tools->is_array()) return fields_.fail("tools", "must be a list");
    if (tools->items().empty()) return;
    std::vector<Json> out;
    for (size_t i = 0; i < tools->items().size(); ++i) {
      const Json& tool = tools->items()[i];
      if (string_of(tool, "type") != "function") {
        return fields_.fail(fmt::format("tools[{}].type", i), "must be function: this server runs no tools");
      }
      Members function;
      for (const char* key : {"name", "description", "parameters", "strict"}) {
        if (const Json* value = tool.find_set(key); value != nullptr) function.emplace_back(key, *value);
      }
      out.push_back(
          Json::object({{"type", Json::string("function")}, {"function", Json::object(std::move(function))}}));
    }
    others_.emplace_back("tools", Json::array(std::move(out)));
  }

  void read_tool_choice() {
    const Json* choice = fields_.get("tool_choice");
    if (choice == nullptr) return;
    if (!choice->is_object() || string_of(*choice, "type") != "function") {
      others_.emplace_back("tool_choice", *choice);
      return;
    }
    Json function = Json::object({{"name", Json::string(string_of(*choice, "name"))}});
    others_.emplace_back("tool_choice",
                         Json::object({{"type", Json::string("function")}, {"function", std::move(function)}}));
  }

  // Its schema stands flat beside the type.
  void read_format() {
    const Json* text = fields_.get("text");
    const Json* format = text == nullptr ? nullptr : text->find_set("format");
    if (format == nullptr) return;
    if (!format->is_object()) return fields_.fail("text.format", "must be an object");
    Members kept = {{"type", Json::string(string_of(*format, "type"))}};
    Members schema;
    for (const char* key : {"name", "schema", "strict"}) {
      if (const Json* value = format->find_set(key); value != nullptr) schema.emplace_back(key, *value);
    }
    if (!schema.empty()) kept.emplace_back("json_schema", Json::object(std::move(schema)));
    others_.emplace_back("response_format", Json::object(std::move(kept)));
  }

  void read_reasoning() {
    for (const char* key : {"thinking", "chat_template_kwargs", "reasoning_effort"}) {
      if (const Json* value = fields_.get(key); value != nullptr) others_.emplace_back(key, *value);
    }
    const Json* reasoning = fields_.get("reasoning");
    const Json* effort = reasoning == nullptr ? nullptr : reasoning->find_set("effort");
    if (effort != nullptr) others_.emplace_back("reasoning_effort", *effort);
  }

  Fields& fields_;
  std::vector<Json> messages_;
  Members others_;
  std::optional<Turn> turn_;
};

}  // namespace

Json chat_of_responses(Fields& fields) {
  return ResponsesReader(fields).read();
}

}  // namespace perigee::serve
