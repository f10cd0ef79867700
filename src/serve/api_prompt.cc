#include "serve/api_prompt.h"

#include <algorithm>
#include <utility>

namespace perigee::serve {

using text::Json;

namespace {

constexpr int64_t kLogprobBytes = 96;  // of one alternative in JSON: id, number, rank, token

ApiError too_long(int64_t prompt_tokens, int64_t new_tokens, int64_t context) {
  ApiError error;
  error.code = "context_length_exceeded";
  error.message = fmt::format(
      "the maximum context length is {} tokens, but the request needs {} of the prompt and {} to generate; shorten the "
      "prompt or lower max_tokens",
      context, prompt_tokens, new_tokens);  // no sum: it need not fit into 64 bits
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
  if (request.tool_choice == text::ToolChoice::kNone) return {};
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
  size_t end = 0;
  while (end < error.message.size() && (std::isalnum(static_cast<unsigned char>(error.message[end])) != 0 ||
                                        std::string_view("_.[]$").find(error.message[end]) != std::string_view::npos)) {
    ++end;
  }
  const std::string first = error.message.substr(0, end);
  if (first != "the" && first != "The") out.param = first;
  return out;
}

std::optional<ApiError> read_chat_prompt(const Json& body, const text::Tokenizer& tokenizer, ChatPrompt& out) {
  Result<text::ChatRequest> request = text::parse_chat_request(body);
  if (!request.ok()) return blamed(request.error());
  Result<std::vector<int32_t>> ids = text::encode_segments(tokenizer, text::render_chat(*request));
  if (!ids.ok()) return api_error(ids.error());
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

std::optional<ApiError> constrain_chat(const ApiCore& core, const text::ChatRequest& request,
                                       std::shared_ptr<text::Constraint>& out) {
  ConstraintSpec spec;
  spec.chat = &request;
  spec.field = constraining_field(request);
  if (spec.field.empty()) return std::nullopt;
  return make_constraint(core, spec, out);
}

std::optional<ApiError> plan_lengths(const ApiCore& core, Job& job) {
  const CommonFields& common = job.common;
  const int64_t context = core.backend->info().max_model_len;
  const int64_t asked = std::max<int64_t>(common.max_tokens.value_or(1), 1);
  int64_t prompt_bytes = 0;
  for (const std::vector<int32_t>& prompt : job.prompts) {
    const auto tokens = static_cast<int64_t>(prompt.size());
    if (tokens > context || asked > context - tokens) return too_long(tokens, asked, context);
    prompt_bytes += tokens * (common.prompt_logprobs + 1) * kLogprobBytes * common.n;
  }
  if (prompt_bytes > core.options.limits.prompt_logprob_bytes_max) {
    ApiError error;
    error.param = "prompt_logprobs";
    error.message = fmt::format(
        "prompt_logprobs for this prompt would take about {} bytes; at most {} are allowed: ask for fewer alternatives "
        "or send a shorter prompt",
        prompt_bytes, core.options.limits.prompt_logprob_bytes_max);
    return error;
  }
  const auto answers = static_cast<int64_t>(job.prompts.size()) * common.n;
  if (answers > core.options.limits.answers_max) {
    ApiError error;
    error.param = "n";
    error.message = fmt::format("n times the number of prompts is {}; at most {} are allowed", answers,
                                core.options.limits.answers_max);
    return error;
  }
  job.max_tokens = common.max_tokens.has_value() ? asked : core.options.defaults.max_tokens;
  return std::nullopt;
}

std::optional<ApiError> launch(ApiCore& core, const std::shared_ptr<Reply>& reply, Job job, Format format) {
  const auto session = std::make_shared<Session>(core, reply, std::move(format));
  const Status started = session->start(std::move(job));
  if (!started.ok()) return api_error(started.error());
  return std::nullopt;
}

}  // namespace perigee::serve
