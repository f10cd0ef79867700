#include "serve/api_prompt.h"

#include <algorithm>
#include <utility>

namespace perigee::serve {

using text::Json;

namespace {

constexpr int64_t kLogprobBytes = 96;  // of one alternative in JSON: id, number, rank, token

// To blame is the prompt if it leaves no room for a single token, or else what asks for more than there is left.
ApiError too_long(const Job& job, int64_t prompt_tokens, int64_t new_tokens, int64_t context) {
  ApiError error;
  error.param = prompt_tokens >= context ? job.prompt_field : job.common.max_tokens_field;
  error.code = "context_length_exceeded";
  error.message = fmt::format(
      "{} is too large: the maximum context length is {} tokens, the prompt has {} and {} are to be generated; shorten the "
      "prompt or lower max_tokens",
      error.param, context, prompt_tokens, new_tokens);
  return error;
}

bool is_strict(const Json& tool) {
  const Json* function = tool.find("function");
  const Json* strict = function == nullptr ? nullptr : function->find_set("strict");
  return strict != nullptr && strict->is_bool() && strict->as_bool();
}

// Which field asks that the answer be constrained; empty: none.
std::string constraining_field(const text::ChatRequest& request) {
  if (request.response_format != text::ResponseFormat::kText) return "response_format";
  if (request.tool_choice != text::ToolChoice::kAuto) return "tool_choice";
  bool any = std::any_of(request.tools.begin(), request.tools.end(), is_strict);
  for (const text::Message& message : request.messages) {
    any = any || std::any_of(message.tools.begin(), message.tools.end(), is_strict);
  }
  return any ? "tools" : "";
}

AnswerRules common_rules(const CommonFields& common, const ApiOptions& options) {
  AnswerRules rules;
  rules.ignore_end = common.ignore_end;
  rules.include_stop = common.include_stop;
  rules.skip_hidden = common.skip_hidden;
  rules.min_tokens = common.sampling.min_tokens;
  rules.stops = common.stops;
  rules.stop_ids = common.stop_ids;
  rules.end_ids = options.end_ids;
  return rules;
}

}  // namespace

ApiError blamed(const Error& error) {
  ApiError out = api_error(error);
  std::string first = error.message.substr(0, error.message.find_first_of(" :"));
  if (is_field_name(first) && first != "the") out.param = std::move(first);
  return out;
}

ApiError renamed(ApiError error, const FieldNames& names) {
  const std::string old = error.param;
  const auto begins = [&](std::string_view word) {
    return old.starts_with(word) && (old.size() == word.size() || old[word.size()] == '.' || old[word.size()] == '[');
  };
  if (begins("messages")) {
    error.param = names.messages;
  } else if (begins("response_format")) {
    error.param = names.response_format;
  } else if (begins("reasoning_effort")) {
    error.param = names.reasoning_effort;
  } else if (const size_t at = old.find("function."); begins("tools") && at != std::string::npos) {
    const std::string member = old.substr(at);
    constexpr std::string_view kParameters = "function.parameters";
    error.param = old.substr(0, at);
    error.param += member.starts_with(kParameters) ? names.parameters + member.substr(kParameters.size())
                                                   : names.function + member.substr(std::string_view("function.").size());
  }
  if (!old.empty() && error.message.starts_with(old)) error.message.replace(0, old.size(), error.param);
  return error;
}

std::optional<ApiError> read_chat_prompt(const Json& body, const text::Tokenizer& tokenizer, ChatPrompt& out) {
  Result<text::ChatRequest> request = text::parse_chat_request(body);
  if (!request.ok()) return blamed(request.error());
  Result<std::vector<int32_t>> ids = text::encode_segments(tokenizer, text::render_chat(*request));
  if (!ids.ok()) return api_error(ids.error(), "messages");
  out.request = std::move(*request);
  out.ids = std::move(*ids);
  return std::nullopt;
}

AnswerRules chat_rules(const text::ChatRequest& request, const CommonFields& common, const ApiOptions& options) {
  AnswerRules rules = common_rules(common, options);
  rules.thinking = request.thinking;
  rules.drop_calls = request.tool_choice == text::ToolChoice::kNone;
  return rules;
}

AnswerRules raw_rules(const CommonFields& common, const ApiOptions& options) {
  AnswerRules rules = common_rules(common, options);
  rules.raw = true;
  return rules;
}

std::optional<ApiError> make_constraint(const ApiCore& core, const ConstraintSpec& spec,
                                        std::shared_ptr<text::Constraint>& out) {
  if (!core.options.make_constraint) {
    ApiError error;
    error.param = spec.field;
    error.message = fmt::format("{} asks for constrained decoding, which is not available on this server", spec.field);
    return error;
  }
  Result<std::shared_ptr<text::Constraint>> made = core.options.make_constraint(spec);
  if (!made.ok()) return blamed(made.error());
  out = std::move(*made);
  return std::nullopt;
}

std::optional<ApiError> constrain_chat(const ApiCore& core, const text::ChatRequest& request, Fields* fields,
                                       std::shared_ptr<text::Constraint>& out) {
  std::optional<ConstraintSpec> outputs;
  if (fields != nullptr) outputs = read_structured_outputs(*fields);
  if (outputs.has_value() && request.response_format != text::ResponseFormat::kText) {
    fields->fail("structured_outputs", "stands beside response_format; give one");
  }
  if (fields != nullptr && fields->failed()) return fields->error();
  ConstraintSpec spec = outputs.value_or(ConstraintSpec());
  spec.chat = &request;
  if (!outputs.has_value()) spec.field = constraining_field(request);
  if (spec.field.empty()) return std::nullopt;
  // Calls that must not come are dropped anyway; a constraint lets the model answer instead.
  const bool only_none = spec.field == "tool_choice" && request.tool_choice == text::ToolChoice::kNone;
  if (only_none && !core.options.make_constraint) return std::nullopt;
  return make_constraint(core, spec, out);
}

std::optional<ApiError> plan_lengths(const ApiCore& core, Job& job) {
  const CommonFields& common = job.common;
  const int64_t context = core.backend->info().max_model_len;
  const int64_t asked = std::max<int64_t>(common.max_tokens.value_or(1), 1);
  int64_t prompt_bytes = 0;
  for (const std::vector<int32_t>& prompt : job.prompts) {
    const auto tokens = static_cast<int64_t>(prompt.size());
    if (tokens > context || asked > context - tokens) return too_long(job, tokens, asked, context);
    prompt_bytes += tokens * (common.prompt_logprobs + 1) * kLogprobBytes * common.n;
  }
  if (prompt_bytes > core.options.limits.prompt_logprob_bytes_max) {
    ApiError error;
    error.param = job.field_prefix + "prompt_logprobs";
    error.message = fmt::format(
        "{} for this prompt would take about {} bytes; at most {} are allowed: ask for fewer alternatives or send a shorter "
        "prompt",
        error.param, prompt_bytes, core.options.limits.prompt_logprob_bytes_max);
    return error;
  }
  const auto answers = static_cast<int64_t>(job.prompts.size()) * common.n;
  if (answers > core.options.limits.answers_max) {
    ApiError error;
    error.param = job.field_prefix + "n";
    error.message = fmt::format("{} times the number of prompts is {}; at most {} are allowed", error.param, answers,
                                core.options.limits.answers_max);
    return error;
  }
  job.max_tokens = common.max_tokens.has_value() ? asked : core.options.defaults.max_tokens;
  return std::nullopt;
}

std::optional<ApiError> launch(ApiCore& core, const std::shared_ptr<Reply>& reply, Job job, Format format) {
  const auto session = std::make_shared<Session>(core, reply, std::move(format));
  const std::string prompt_field = job.prompt_field;
  const Status started = session->start(std::move(job));
  if (started.ok()) return std::nullopt;
  ApiError error = blamed(started.error());
  if (error.status == 400 && error.param.empty()) error.param = prompt_field;
  // An engine that is at work has no room in its queue; the client should come again. One that drains never will have any.
  if (error.status == 503 && !core.backend->state().draining) error.status = 429;
  return error;
}

}  // namespace perigee::serve
