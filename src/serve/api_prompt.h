// What    From a request to a job: the conversation as token ids, how long the answer may be, what constrains it; and
//         the start of it.
// Owner   serve.
// Threads Handlers' threads.
// Errors  An ApiError with the field's name.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "serve/session.h"
#include "text/chat.h"

namespace perigee::serve {

struct ChatPrompt {
  text::ChatRequest request;
  std::vector<int32_t> ids;
};

// `body` as chat-completions has it.
std::optional<ApiError> read_chat_prompt(const text::Json& body, const text::Tokenizer& tokenizer, ChatPrompt& out);

// What a conversation's answer needs: channels, dropped calls, stop rules.
AnswerRules chat_rules(const text::ChatRequest& request, const CommonFields& common, const ApiOptions& options);
AnswerRules raw_rules(const CommonFields& common, const ApiOptions& options);

// The constraint that a conversation asks for; null when it asks for none. `fields`, if any, may hold structured_outputs.
std::optional<ApiError> constrain_chat(const ApiCore& core, const text::ChatRequest& request, Fields* fields,
                                       std::shared_ptr<text::Constraint>& out);
std::optional<ApiError> make_constraint(const ApiCore& core, const ConstraintSpec& spec,
                                        std::shared_ptr<text::Constraint>& out);

// `prompt` of a completion: a text, texts, ids, or lists of ids; cut as truncate_prompt_tokens says.
std::vector<std::vector<int32_t>> read_prompts(Fields& fields, const ApiCore& core, const CommonFields& common);
void truncate_prompt(Fields& fields, const CommonFields& common, std::vector<int32_t>& ids);
// structured_outputs or response_format of a completion; null when neither asks for anything.
// structured_outputs alone, as far as it asks for anything.
std::optional<ConstraintSpec> read_structured_outputs(Fields& fields);
std::shared_ptr<text::Constraint> read_structured(Fields& fields, const ApiCore& core);

// Checks prompts and answers against the context, and the bytes of what was asked for; sets job.max_tokens.
std::optional<ApiError> plan_lengths(const ApiCore& core, Job& job);

// Runs the job; what the engine refuses comes back.
std::optional<ApiError> launch(ApiCore& core, const std::shared_ptr<Reply>& reply, Job job, Format format);

// The error of another room, with the field that its sentence begins with as the one to blame.
ApiError blamed(const Error& error);

// Another protocol's names of a chat request's fields, for errors about the chat that its request was turned into. What stood in
// a list keeps its path within the list, except for messages, whose places differ.
struct FieldNames {
  std::string messages = "messages";
  std::string response_format = "response_format";
  std::string reasoning_effort = "reasoning_effort";
  std::string parameters = "function.parameters";  // of a tool
  std::string function = "function.";              // before a tool's other members
};
ApiError renamed(ApiError error, const FieldNames& names);

}  // namespace perigee::serve
