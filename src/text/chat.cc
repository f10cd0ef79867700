#include "text/chat.h"

#include <algorithm>
#include <initializer_list>
#include <map>

#include "text/utf8.h"
#include "text/xtml.h"

namespace perigee::text {

namespace {

struct Attribute {
  std::string_view key;
  std::string value;
};

const char* effort_name(ThinkingEffort effort) {
  switch (effort) {
    case ThinkingEffort::kLow:
      return "low";
    case ThinkingEffort::kHigh:
      return "high";
    case ThinkingEffort::kMax:
      return "max";
  }
  return "";
}

const char* argument_type(const Json& value) {
  switch (value.kind()) {
    case Json::Kind::kNull:
      return "null";
    case Json::Kind::kBool:
      return "boolean";
    case Json::Kind::kInteger:
    case Json::Kind::kFloat:
      return "number";
    case Json::Kind::kString:
      return "string";
    case Json::Kind::kArray:
      return "array";
    case Json::Kind::kObject:
      return "object";
  }
  return "";
}

std::string json_fence(const Json& value) {
  return "```json\n" + print_json(value, kJsonCompactSorted) + "\n```";
}

class Renderer {
 public:
  std::vector<Segment> take() { return std::move(segments_); }

  void render(const ChatRequest& request) {
    if (!request.tools.empty()) tool_declaration(request.tools, kFirstTools);
    if (request.thinking) thinking_effort(request.effort);
    int tool_index = 0;  // results since the last assistant turn
    for (const Message& message : request.messages) {
      if (message.role == Role::kAssistant) tool_index = 0;
      if (message.role == Role::kTool) ++tool_index;
      render_message(message, request.thinking, tool_index);
    }
    tool_choice(request);
    response_format(request);
    open("message", {{"role", "assistant"}});
    open(request.thinking ? "think" : "response");
  }

 private:
  static constexpr std::string_view kFirstTools =
      "# Tools\nHere are the available tools, described in JSONSchema.\n\n";
  static constexpr std::string_view kLaterTools =
      "## New Tools Available\nThe system dynamically extends the toolset via lazy-loading.\n"
      "You have access to all existing and extended tools.\n"
      "Here are the specs for the extended tools.\n\n";

  void control(std::string_view marker) { segments_.push_back({std::string(marker), true}); }

  void text(std::string_view body) {
    if (!body.empty()) segments_.push_back({std::string(body), false});
  }

  void open(std::string_view tag, std::initializer_list<Attribute> attributes = {}) {
    control(xtml::kOpen);
    text(tag);
    for (const Attribute& attribute : attributes) attribute_text(attribute);
    control(xtml::kSep);
  }

  void open_message(std::string_view role, const std::string& name) {
    if (name.empty()) {
      open("message", {{"role", std::string(role)}});
    } else {
      open("message", {{"role", std::string(role)}, {"name", name}});
    }
  }

  void attribute_text(const Attribute& attribute) {
    text(fmt::format(" {}", attribute.key));
    text("=\"");
    text(xtml::escape_attribute(attribute.value));
    text("\"");
  }

  void close(std::string_view tag) {
    control(xtml::kClose);
    text(tag);
    control(xtml::kSep);
  }

  void close_message() {
    close("message");
    control(xtml::kEndOfMessage);
  }

  void notice(std::string_view type, std::string_view body) {
    open("message", {{"role", "system"}, {"type", std::string(type)}});
    text(body);
    close_message();
  }

  void tool_declaration(const std::vector<Json>& tools, std::string_view heading) {
    notice("tool-declare", std::string(heading) + json_fence(Json::array(tools)));
  }

  void thinking_effort(ThinkingEffort effort) {
    notice(
        "thinking-effort",
        fmt::format("`thinking_effort` guides on how much to think in your thinking channel (not "
                    "including the response channel), supported values include `low`, `medium`, "
                    "`high`, and `max`.\nNow the system is invoked with `thinking_effort={}`.",
                    effort_name(effort)));
  }

  void content(const Message& message) {
    for (const std::string& part : message.content) text(part);
  }

  void render_message(const Message& message, bool thinking, int tool_index) {
    switch (message.role) {
      case Role::kSystem:
        if (!message.tools.empty()) return tool_declaration(message.tools, kLaterTools);
        open_message("system", message.name);
        content(message);
        return close_message();
      case Role::kUser:
        open_message("user", message.name);
        content(message);
        return close_message();
      case Role::kAssistant:
        return assistant(message, thinking);
      case Role::kTool:
        CHECK(!message.tool_name.empty());
        open(
            "message",
            {{"role", "tool"}, {"tool", message.tool_name}, {"index", std::to_string(tool_index)}});
        content(message);
        return close_message();
    }
  }

  void assistant(const Message& message, bool thinking) {
    open_message("assistant", message.name);
    if (thinking) {
      open("think");
      if (!is_blank(message.reasoning)) text(message.reasoning);
      close("think");
    }
    open("response");
    content(message);
    close("response");
    if (!message.tool_calls.empty()) {
      open("tools");
      for (size_t i = 0; i < message.tool_calls.size(); ++i) call(message.tool_calls[i], i + 1);
      close("tools");
    }
    close_message();
  }

  void call(const ToolCall& call, size_t index) {
    open("call", {{"tool", call.name}, {"index", std::to_string(index)}});
    if (call.raw_arguments.has_value()) {
      open("json", {{"type", "object"}});
      text(*call.raw_arguments);
      close("json");
    } else {
      for (const auto& [key, value] : call.arguments.members()) {
        open("argument", {{"key", key}, {"type", argument_type(value)}});
        text(value.is_string() ? value.as_string() : print_json(value));
        close("argument");
      }
    }
    close("call");
  }

  void tool_choice(const ChatRequest& request) {
    if (request.tool_choice == ToolChoice::kRequired) {
      notice("tool-choice",
             "The system is invoked with `tool_choice=required`.\nYou MUST call tools in the next "
             "message.");
    } else if (request.tool_choice == ToolChoice::kNone && request.declares_tools()) {
      notice("tool-choice",
             "The system is invoked with `tool_choice=none`.\nYou MUST NOT call any tools in the "
             "next message.");
    }
  }

  void response_format(const ChatRequest& request) {
    if (request.response_format == ResponseFormat::kText) return;
    const bool has_schema = request.response_format == ResponseFormat::kJsonSchema;
    std::string body = fmt::format(
        "The system is invoked with `response_format={}`.\nYour response must be raw JSON data "
        "without "
        "markdown code blocks (```json) or any additional formatting.",
        has_schema ? "json_schema" : "json_object");
    if (has_schema) {
      body += "\nThe JSON data must match the following schema:\n" +
              json_fence(request.response_schema);
    }
    notice("response-format", body);
  }

  std::vector<Segment> segments_;
};

// One run of neighbouring results, from `from` to `end`; `place` counts the results of the turn
// before it.
Status order_run(std::vector<Message>& messages, size_t from, size_t end, const Message* assistant,
                 size_t place) {
  static const std::vector<ToolCall> kNoCalls;
  const std::vector<ToolCall>& calls = assistant == nullptr ? kNoCalls : assistant->tool_calls;
  std::map<std::string, size_t> call_of_id;
  for (size_t i = 0; i < calls.size(); ++i) {
    if (!calls[i].id.empty()) call_of_id.emplace(calls[i].id, i);  // the first of equal ids counts
  }
  for (size_t i = 0; i < calls.size(); ++i) {
    call_of_id.emplace(fmt::format("{}:{}", calls[i].name, i),
                       i);  // only where no id is spelled so
  }
  std::vector<std::pair<size_t, Message>> run;
  bool all_known = true;
  for (size_t m = from; m < end; ++m) {
    const auto found = call_of_id.find(messages[m].tool_call_id);
    all_known = all_known && found != call_of_id.end();
    run.emplace_back(found == call_of_id.end() ? 0 : found->second, messages[m]);
  }
  if (all_known) {
    std::stable_sort(run.begin(), run.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
  }
  for (size_t i = 0; i < run.size(); ++i) {
    Message& message = messages[from + i];
    message = std::move(run[i].second);
    if (all_known) {
      message.tool_name = calls[run[i].first].name;
    } else if (message.tool_name.empty() && place + i < calls.size()) {
      message.tool_name = calls[place + i].name;
    }
    if (message.tool_name.empty()) {
      return invalid_argument(
          "messages[{}].tool_call_id \"{}\" answers no tool call of the assistant message before "
          "it",
          from + i, message.tool_call_id);
    }
  }
  return {};
}

}  // namespace

bool ChatRequest::declares_tools() const {
  return !tools.empty() ||
         std::any_of(messages.begin(), messages.end(),
                     [](const Message& message) { return !message.tools.empty(); });
}

ChatRequest single_user_message(std::string_view text) {
  ChatRequest request;
  Message& message = request.messages.emplace_back();
  message.content.emplace_back(text);
  return request;
}

Status order_tool_results(std::vector<Message>& messages) {
  const Message* assistant = nullptr;
  size_t place = 0;
  for (size_t at = 0; at < messages.size();) {
    if (messages[at].role != Role::kTool) {
      if (messages[at].role == Role::kAssistant) {
        assistant = &messages[at];
        place = 0;
      }
      ++at;
      continue;
    }
    size_t end = at;
    while (end < messages.size() && messages[end].role == Role::kTool) ++end;
    const Status ordered = order_run(messages, at, end, assistant, place);
    if (!ordered.ok()) return ordered;
    place += end - at;
    at = end;
  }
  return {};
}

std::vector<Segment> render_chat(const ChatRequest& request) {
  Renderer renderer;
  renderer.render(request);
  return renderer.take();
}

Result<std::vector<int32_t>> encode_segments(const Tokenizer& tokenizer,
                                             const std::vector<Segment>& segments) {
  std::vector<int32_t> ids;
  for (const Segment& segment : segments) {
    if (!segment.is_control) {
      tokenizer.encode_text(segment.text, ids);
      continue;
    }
    const std::optional<int32_t> id = tokenizer.special_id(segment.text);
    if (!id.has_value()) {
      return invalid_argument(
          "the tokenizer has no token {}, so this model has no Kimi K3 chat format; use --text or "
          "--prompt-ids",
          segment.text);
    }
    ids.push_back(*id);
  }
  return ids;
}

}  // namespace perigee::text
