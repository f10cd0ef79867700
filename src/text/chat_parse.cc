// Reading and checking the body of a chat-completions request (chat.h).
#include <algorithm>
#include <set>

#include "text/chat.h"
#include "text/chat_messages.h"

namespace perigee::text {
namespace {

// Of all calls of a request: more than a full context has, and little enough that the values in it fit into memory.
constexpr size_t kArgumentBytesMax = 8 << 20;

class RequestReader {
 public:
  explicit RequestReader(const Json& body) : body_(body) {}

  Result<ChatRequest> read() {
    for (const auto step : {&RequestReader::read_tools_member, &RequestReader::read_messages,
                            &RequestReader::read_tool_choice, &RequestReader::read_response_format,
                            &RequestReader::read_template_arguments, &RequestReader::read_thinking,
                            &RequestReader::read_effort, &RequestReader::refuse_prefill}) {
      const Status done = (this->*step)();
      if (!done.ok()) return done.error();
    }
    return std::move(request_);
  }

 private:
  Status read_tools_member() {
    const Json* tools = body_.find_set("tools");
    if (tools == nullptr) return {};
    Result<std::vector<Json>> kept = read_tools(*tools, "tools", tool_names_);
    if (!kept.ok()) return kept.error();
    request_.tools = std::move(*kept);
    return {};
  }

  Status read_messages() {
    const Json* messages = body_.is_array() ? &body_ : body_.find("messages");
    if (messages == nullptr) return invalid_argument("messages is missing");
    if (!messages->is_array()) return wrong_kind("messages", "a list of messages", *messages);
    if (messages->items().empty()) return invalid_argument("messages is an empty list; give at least one message");
    size_t in_calls = 0;
    for (size_t i = 0; i < messages->items().size(); ++i) {
      in_calls += argument_bytes(messages->items()[i]);
      if (in_calls > kArgumentBytesMax) {
        return invalid_argument("messages[{}].tool_calls: all arguments up to here have {} bytes; at most {} are allowed",
                                i, in_calls, kArgumentBytesMax);
      }
      Result<Message> message = read_message(messages->items()[i], fmt::format("messages[{}]", i), tool_names_);
      if (!message.ok()) return message.error();
      request_.messages.push_back(std::move(*message));
    }
    return order_tool_results(request_.messages);
  }

  Status read_tool_choice() {
    const Json* choice = body_.find_set("tool_choice");
    if (choice == nullptr) return {};
    if (choice->is_string()) {
      const std::string& name = choice->as_string();
      if (name == "auto") {
        request_.tool_choice = ToolChoice::kAuto;
      } else if (name == "none") {
        request_.tool_choice = ToolChoice::kNone;
      } else if (name == "required") {
        request_.tool_choice = ToolChoice::kRequired;
      } else {
        return invalid_argument(
            "tool_choice \"{}\" is unknown; use auto, none, required or a named function", name);
      }
    } else {
      const Json* type = choice->find("type");
      const Json* function = choice->find("function");
      const Json* name = function == nullptr ? nullptr : function->find("name");
      const bool is_named = type != nullptr && type->is_string() &&
                            type->as_string() == "function" && name != nullptr && name->is_string();
      if (!is_named) {
        return invalid_argument(
            "tool_choice must be auto, none, required or {{\"type\": \"function\", \"function\": "
            "{{\"name\": ...}}}}");
      }
      request_.tool_choice = ToolChoice::kNamed;
      request_.tool_choice_name = name->as_string();
      if (!tool_names_.contains(request_.tool_choice_name)) {
        return invalid_argument("tool_choice names \"{}\", which is not among the tools",
                                request_.tool_choice_name);
      }
    }
    if (request_.tool_choice == ToolChoice::kRequired && tool_names_.empty()) {
      return invalid_argument("tool_choice \"required\" needs tools");
    }
    return {};
  }

  Status read_response_format() {
    const Json* format = body_.find_set("response_format");
    if (format == nullptr) return {};
    if (!format->is_object()) return wrong_kind("response_format", "an object", *format);
    const Json* type = format->find("type");
    const std::string name = type != nullptr && type->is_string() ? type->as_string() : "";
    if (name == "text") return {};
    if (name == "json_object") {
      request_.response_format = ResponseFormat::kJsonObject;
      return {};
    }
    if (name != "json_schema") {
      return invalid_argument("response_format.type must be text, json_object or json_schema");
    }
    const Json* wrapper = format->find_set("json_schema");
    if (wrapper == nullptr || !wrapper->is_object()) {
      return invalid_argument(
          "response_format.json_schema must be an object with `name` and `schema`");
    }
    const Json* schema_name = wrapper->find("name");
    if (schema_name == nullptr || !schema_name->is_string() || schema_name->as_string().empty()) {
      return invalid_argument("response_format.json_schema.name must be a non-empty string");
    }
    const Json* schema = wrapper->find("schema");
    if (schema == nullptr || !schema->is_object()) {
      return invalid_argument("response_format.json_schema.schema must be an object");
    }
    const Json* strict = wrapper->find_set("strict");
    if (strict != nullptr && !strict->is_bool()) {
      return wrong_kind("response_format.json_schema.strict", "a boolean", *strict);
    }
    request_.response_format = ResponseFormat::kJsonSchema;
    request_.response_schema = *schema;
    return {};
  }

  // The place where other servers take thinking from; the members of the request itself come later
  // and win.
  Status read_template_arguments() {
    const Json* arguments = body_.find_set("chat_template_kwargs");
    if (arguments == nullptr) return {};
    if (!arguments->is_object()) return wrong_kind("chat_template_kwargs", "an object", *arguments);
    for (const auto& [key, value] : arguments->members()) {
      const std::string field = "chat_template_kwargs." + key;
      if (key == "thinking" || key == "enable_thinking") {
        if (!value.is_bool()) return wrong_kind(field, "a boolean", value);
        request_.thinking = value.as_bool();
      } else if (key == "thinking_effort" || key == "reasoning_effort") {
        const bool is_own = key == "thinking_effort";
        const Status set = is_own ? set_effort(value, field) : set_reasoning(value, field);
        if (!set.ok()) return set;
      } else {
        return invalid_argument("{} is unknown; use thinking, enable_thinking or thinking_effort", field);
      }
    }
    return {};
  }

  Status read_thinking() {
    const Json* thinking = body_.find_set("thinking");
    if (thinking == nullptr) return {};
    if (!thinking->is_object()) return wrong_kind("thinking", "an object such as {\"type\": \"enabled\"}", *thinking);
    const Json* type = thinking->find_set("type");
    if (type != nullptr) {
      const std::string name = type->is_string() ? type->as_string() : "";
      if (name != "enabled" && name != "disabled") {
        return invalid_argument("thinking.type must be enabled or disabled");
      }
      request_.thinking = name == "enabled";
    }
    const Json* keep = thinking->find_set("keep");
    if (keep != nullptr && !(keep->is_string() && keep->as_string() == "all")) {
      return invalid_argument(
          "thinking.keep must be \"all\": this model always sees its earlier reasoning");
    }
    const Json* effort = thinking->find_set("effort");
    return effort == nullptr ? Status() : set_effort(*effort, "thinking.effort");
  }

  Status read_effort() {
    const Json* effort = body_.find_set("reasoning_effort");
    return effort == nullptr ? Status() : set_reasoning(*effort, "reasoning_effort");
  }

  // OpenAI's word for it has more values than the model has efforts. Those beyond the ends mean the
  // end, none means no thinking; medium, which lies between two, is not guessed at.
  Status set_reasoning(const Json& value, const std::string& field) {
    const std::string name = value.is_string() ? value.as_string() : "";
    if (name == "none") {
      request_.thinking = false;
      return {};
    }
    const Json known = Json::string(name == "minimal" ? "low" : name == "xhigh" ? "max" : name);
    if (set_effort(known, field).ok()) return {};
    return invalid_argument("{} must be none, minimal, low, high, xhigh or max", field);
  }

  Status set_effort(const Json& value, const std::string& field) {
    const std::string name = value.is_string() ? value.as_string() : "";
    if (name == "low") {
      request_.effort = ThinkingEffort::kLow;
    } else if (name == "high") {
      request_.effort = ThinkingEffort::kHigh;
    } else if (name == "max") {
      request_.effort = ThinkingEffort::kMax;
    } else {
      return invalid_argument("{} must be low, high or max", field);
    }
    return {};
  }

  Status refuse_prefill() {
    const Json* open_end = body_.find_set("continue_final_message");
    const Json* prompt = body_.find_set("add_generation_prompt");
    const bool continues = open_end != nullptr && !(open_end->is_bool() && !open_end->as_bool());
    const bool no_prompt = prompt != nullptr && !(prompt->is_bool() && prompt->as_bool());
    if (!continues && !no_prompt) return {};
    return invalid_argument("{} is not supported: an answer cannot be begun for the model",
                            continues ? "continue_final_message" : "add_generation_prompt: false");
  }

  const Json& body_;
  ChatRequest request_;
  std::set<std::string> tool_names_;
};

}  // namespace

Result<ChatRequest> parse_chat_request(const Json& body) {
  if (!body.is_object() && !body.is_array()) {
    return wrong_kind("the request", "an object with `messages`, or a list of messages", body);
  }
  return RequestReader(body).read();
}

}  // namespace perigee::text
