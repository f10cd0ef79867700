// What    A chat-completions request as plain types, and its rendering as Kimi K3's wire format
// ("XTML").
//         K3 has no template: a prompt is a list of segments, each encoded on its own, so merges
//         never cross a border and text of users can never become a control token. With O, C, S, E
//         for the control tokens <|open|>, <|close|>,
//         <|sep|>, <|end_of_msg|>, and nothing (no space, no newline) between elements:
//
//           conversation = [tool-declare] [thinking-effort] message* [tool-choice]
//           [response-format] generation-prompt message      = O message role="R" [name="N"] S
//           content C message S E        R = system | user assistant    = O message
//           role="assistant" [name="N"] S
//                            [O think S reasoning C think S]                            always
//                            there when thinking is on O response S content C response S [O tools S
//                            call+ C tools S] C message S E
//           call         = O call tool="NAME" index="1.." S argument* C call S
//           argument     = O argument key="K" type="T" S value C argument S             T = string
//           | number | boolean |
//                                                                                           null |
//                                                                                           object
//                                                                                           | array
//                        | O json type="object" S raw text C json S                     arguments
//                        that are no JSON
//           tool result  = O message role="tool" tool="NAME" index="1.." S content C message S E
//           the bracketed ones of `conversation` = O message role="system" type="X" S body C
//           message S E generation-prompt = O message role="assistant" S O think S thinking off: O
//           response S
//
//         The segments of a tag: O | tag | for each attribute: ` key` | `="` | value | `"` | S. In
//         attribute values & is written &amp; and then " is written &quot;; nothing else is escaped
//         anywhere. A string argument is its raw text, every other value is JSON as Python's
//         json.dumps prints it. Results of tools stand in the order of the calls.
// Owner   text.
// Threads Value types and pure functions.
// Errors  parse_chat_request() returns one sentence that names the field (a 400 to a client);
// rendering cannot fail. Source  The checkpoint's published encoder (encoding_k3.py); OpenAI's and
// Moonshot's chat-completions requests.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/json.h"
#include "text/tokenizer.h"

namespace perigee::text {

enum class Role { kSystem, kUser, kAssistant, kTool };

struct ToolCall {
  std::string id;  // may be empty
  std::string name;
  Json arguments = Json::object({});
  std::optional<std::string>
      raw_arguments;  // set when the arguments are no JSON; `arguments` is unused then
};

struct Message {
  Role role = Role::kUser;
  std::string name;                  // empty: no attribute; not of tool results
  std::vector<std::string> content;  // text parts; each is a segment of its own
  std::string reasoning;             // assistant
  std::vector<ToolCall> tool_calls;  // assistant
  std::vector<Json> tools;   // system: tools declared from here on; `content` is unused then
  std::string tool_call_id;  // tool result
  std::string tool_name;     // tool result: whose result this is
};

enum class ToolChoice { kAuto, kNone, kRequired, kNamed };
enum class ResponseFormat { kText, kJsonObject, kJsonSchema };
enum class ThinkingEffort { kLow, kHigh, kMax };

struct ChatRequest {
  std::vector<Message> messages;
  std::vector<Json> tools;  // each {"type": "function", "function": {...}}
  ToolChoice tool_choice = ToolChoice::kAuto;
  std::string tool_choice_name;  // of kNamed
  ResponseFormat response_format = ResponseFormat::kText;
  Json response_schema;  // of kJsonSchema
  bool thinking = true;
  ThinkingEffort effort = ThinkingEffort::kMax;

  bool declares_tools() const;  // by `tools` or by a system message
};

// From the body of a chat-completions request: an object with `messages` and optional `tools`,
// `tool_choice`, `response_format`, `reasoning_effort`, `thinking`, `chat_template_kwargs`; a bare
// array is taken as `messages`. Other members (sampling, streaming) belong to other readers and are
// passed over.
Result<ChatRequest> parse_chat_request(const Json& body);

// One user message, thinking on, effort max.
ChatRequest single_user_message(std::string_view text);

// Puts results of tools in the order of the calls and gives each its tool's name, by `tool_call_id`
// (a call's id, or NAME:N with N the call's place from 0). A run of results with an unknown id
// keeps its order and its own names; where those are missing, the place in the run decides.
// parse_chat_request() has done this.
Status order_tool_results(std::vector<Message>& messages);

struct Segment {
  std::string text;
  bool is_control = false;

  friend bool operator==(const Segment&, const Segment&) = default;
};

// Requires that every tool result has its tool_name.
std::vector<Segment> render_chat(const ChatRequest& request);

// Fails if the tokenizer lacks a control token that the segments name (then it belongs to another
// kind of model).
Result<std::vector<int32_t>> encode_segments(const Tokenizer& tokenizer,
                                             const std::vector<Segment>& segments);

}  // namespace perigee::text
