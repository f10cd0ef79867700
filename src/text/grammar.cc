#include "text/grammar.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "text/grammar_answer.h"
#include "text/grammar_rules.h"
#include "text/grammar_schema.h"
#include "text/utf8.h"
#include "text/xtml.h"

namespace perigee::text {

namespace {

Json any_object_schema() {
  return Json::object({{"type", Json::string("object")}});
}

Result<std::vector<std::string>> read_choices(const Json& value) {
  if (!value.is_array() || value.items().empty() || value.items().size() > kChoicesMax) {
    return invalid_argument("structured_outputs.choice must be a list of 1 to {} strings", kChoicesMax);
  }
  std::vector<std::string> choices;
  size_t bytes = 0;
  for (const Json& item : value.items()) {
    if (!item.is_string() || item.as_string().empty() || !is_valid_utf8(item.as_string())) {
      return invalid_argument("structured_outputs.choice[{}] must be a non-empty UTF-8 string", choices.size());
    }
    choices.push_back(item.as_string());
    bytes += item.as_string().size();
  }
  if (bytes > kChoiceBytesMax) {
    return invalid_argument("structured_outputs.choice has {} bytes; at most {} are allowed", bytes, kChoiceBytesMax);
  }
  return choices;
}

Result<StructuredOutputs> read_kind(const std::string& key, const Json& value) {
  using Kind = StructuredOutputs::Kind;
  StructuredOutputs wanted;
  wanted.field += "." + key;
  if (key == "json") {
    wanted.kind = Kind::kJsonSchema;
    Result<Json> schema = value.is_string() ? parse_json(value.as_string(), wanted.field) : Result<Json>(value);
    if (!schema.ok()) return schema.error();
    wanted.schema = std::move(*schema);
  } else if (key == "json_object") {
    if (!value.is_bool() || !value.as_bool()) return invalid_argument("{} must be true", wanted.field);
  } else if (key == "choice") {
    wanted.kind = Kind::kChoice;
    Result<std::vector<std::string>> choices = read_choices(value);
    if (!choices.ok()) return choices.error();
    wanted.choices = std::move(*choices);
  } else {
    wanted.kind = key == "regex" ? Kind::kRegex : Kind::kGrammar;
    if (!value.is_string() || value.as_string().empty()) {
      return invalid_argument("{} must be a non-empty string", wanted.field);
    }
    wanted.source = value.as_string();
  }
  return wanted;
}

}  // namespace

Result<StructuredOutputs> parse_structured_outputs(const Json& value) {
  if (!value.is_object()) return invalid_argument("structured_outputs must be an object, not {}", value.kind_name());
  const std::string* found = nullptr;
  for (const auto& [key, member] : value.members()) {
    const bool known = key == "json" || key == "json_object" || key == "regex" || key == "choice" || key == "grammar";
    const bool off = member.is_null() || (key == "json_object" && member.is_bool() && !member.as_bool());
    if (!known || off) continue;
    if (found != nullptr) {
      return invalid_argument("structured_outputs has both {} and {}; give one", *found, key);
    }
    found = &key;
  }
  if (found == nullptr) {
    return invalid_argument("structured_outputs must have one of json, json_object, regex, choice and grammar");
  }
  return read_kind(*found, *value.find(*found));
}

struct GrammarCompiler::Impl {
  Impl(const Tokenizer& tokenizer, Options options)
      : table(std::make_shared<TokenTable>(tokenizer)), rules(table, options.cache_bytes_max) {
    base.table = table;
    base.open = tokenizer.special_id(xtml::kOpen).value_or(-1);
    base.close = tokenizer.special_id(xtml::kClose).value_or(-1);
    base.sep = tokenizer.special_id(xtml::kSep).value_or(-1);
    base.end_ids = std::move(options.stop_ids);
    if (const auto end = tokenizer.special_id(xtml::kEndOfMessage)) base.end_ids.push_back(*end);
  }

  Result<TextRulePtr> schema(const Json& schema, const std::string& field);
  Result<TextRulePtr> body(const StructuredOutputs& wanted);
  Result<TextRulePtr> response(const ChatRequest& request);
  Status add_tools(const ChatRequest& request, AnswerPlan& plan);
  Status add_tool(const Json& tool, const std::string& field, int64_t& copies, AnswerPlan& plan);

  std::shared_ptr<const TokenTable> table;
  RuleCompiler rules;
  AnswerPlan base;  // what all plans have in common
};

GrammarCompiler::GrammarCompiler(const Tokenizer& tokenizer, Options options)
    : impl_(std::make_unique<Impl>(tokenizer, std::move(options))) {}

GrammarCompiler::~GrammarCompiler() = default;

Result<TextRulePtr> GrammarCompiler::Impl::schema(const Json& schema, const std::string& field) {
  int64_t copies = 0;
  if (const Status checked = check_schema(schema, field, copies); !checked.ok()) return checked.error();
  return schema_rule(rules, schema, field);
}

Result<TextRulePtr> GrammarCompiler::Impl::body(const StructuredOutputs& wanted) {
  switch (wanted.kind) {
    case StructuredOutputs::Kind::kJsonSchema:
      return schema(wanted.schema, wanted.field);
    case StructuredOutputs::Kind::kJsonObject:
      return schema(any_object_schema(), wanted.field);
    case StructuredOutputs::Kind::kRegex:
      return rules.regex(wanted.source, wanted.field);
    case StructuredOutputs::Kind::kChoice:
      return literals_rule(wanted.choices);
    case StructuredOutputs::Kind::kGrammar:
      return rules.ebnf(wanted.source, wanted.field);
  }
  return invalid_argument("{} is of no known kind", wanted.field);
}

Result<TextRulePtr> GrammarCompiler::Impl::response(const ChatRequest& request) {
  switch (request.response_format) {
    case ResponseFormat::kText:
      return any_rule();
    case ResponseFormat::kJsonObject:
      return schema(any_object_schema(), "response_format");
    case ResponseFormat::kJsonSchema:
      return schema(request.response_schema, "response_format.json_schema.schema");
  }
  return any_rule();
}

Status GrammarCompiler::Impl::add_tool(const Json& tool, const std::string& field, int64_t& copies, AnswerPlan& plan) {
  const Json& function = *tool.find("function");
  const std::string& name = function.find("name")->as_string();
  const Json* strict = function.find_set("strict");
  const bool is_strict = strict != nullptr && strict->is_bool() && strict->as_bool();
  const Json* declared = function.find_set("parameters");
  const Json parameters = declared == nullptr ? any_object_schema() : *declared;
  Result<ToolRule> rule = tool_rule(rules, name, parameters, field + ".function.parameters", copies);
  if (!rule.ok() && !is_strict) rule = free_tool_rule(rules, name);
  if (!rule.ok()) return rule.error();
  if (plan.tools.size() == kRuledToolsMax) {
    return invalid_argument("tools: at most {} can be constrained", kRuledToolsMax);
  }
  plan.tools.push_back(std::move(*rule));
  return {};
}

Status GrammarCompiler::Impl::add_tools(const ChatRequest& request, AnswerPlan& plan) {
  const bool chosen = request.tool_choice == ToolChoice::kRequired || request.tool_choice == ToolChoice::kNamed;
  bool any_strict = false;
  std::vector<std::pair<const Json*, std::string>> tools;
  const auto collect = [&](const std::vector<Json>& declared, const std::string& field) {
    for (size_t i = 0; i < declared.size(); ++i) {
      const Json& function = *declared[i].find("function");
      const bool named = function.find("name")->as_string() == request.tool_choice_name;
      const Json* strict = function.find_set("strict");
      any_strict |= strict != nullptr && strict->is_bool() && strict->as_bool();
      if (request.tool_choice != ToolChoice::kNamed || named) {
        tools.emplace_back(&declared[i], fmt::format("{}[{}]", field, i));
      }
    }
  };
  collect(request.tools, "tools");
  for (size_t i = 0; i < request.messages.size(); ++i) {
    collect(request.messages[i].tools, fmt::format("messages[{}].tools", i));
  }
  plan.silences_tools = request.tool_choice == ToolChoice::kNone && !tools.empty();
  plan.tool_use = ToolUse::kFree;  // a model may call what nobody declared; the reader of the answer decides
  if (tools.empty() || request.tool_choice == ToolChoice::kNone) plan.tool_use = ToolUse::kNone;
  if (chosen && tools.empty()) return invalid_argument("tool_choice needs a tool that is declared");
  if (plan.tool_use == ToolUse::kNone || !(chosen || any_strict)) return {};
  plan.tool_use = ToolUse::kRuled;
  plan.calls_min = chosen ? 1 : 0;
  plan.calls_max = request.tool_choice == ToolChoice::kNamed ? 1 : std::numeric_limits<int>::max();
  int64_t copies = 0;
  for (const auto& [tool, field] : tools) {
    if (const Status added = add_tool(*tool, field, copies, plan); !added.ok()) return added;
  }
  return {};
}

Result<std::shared_ptr<Constraint>> GrammarCompiler::for_chat(const ChatRequest& request,
                                                              const StructuredOutputs* outputs) const {
  auto plan = std::make_shared<AnswerPlan>(impl_->base);
  plan->thinking = request.thinking;
  Result<TextRulePtr> body = outputs != nullptr ? impl_->body(*outputs) : impl_->response(request);
  if (!body.ok()) return body.error();
  plan->body = std::move(*body);
  if (const Status added = impl_->add_tools(request, *plan); !added.ok()) return added.error();
  const bool bound =
      plan->body->kind != TextRule::Kind::kAny || plan->tool_use == ToolUse::kRuled || plan->silences_tools;
  if (!bound) return std::shared_ptr<Constraint>();
  if (plan->open < 0 || plan->close < 0 || plan->sep < 0) {
    const bool formats = request.response_format != ResponseFormat::kText;
    return invalid_argument("{} needs Kimi K3's control tokens, which this model lacks",
                            outputs != nullptr ? outputs->field : formats ? "response_format" : "tools");
  }
  return make_constraint(std::move(plan));
}

Result<std::shared_ptr<Constraint>> GrammarCompiler::for_completion(const StructuredOutputs& wanted) const {
  auto plan = std::make_shared<AnswerPlan>(impl_->base);
  plan->plain = true;
  Result<TextRulePtr> body = impl_->body(wanted);
  if (!body.ok()) return body.error();
  plan->body = std::move(*body);
  return make_constraint(std::move(plan));
}

void GrammarCompiler::warm_up() const {
  const Json schema = Json::object({});
  for (const JsonStyle& style : {kJsonCompact, kJsonDefault}) {
    const Result<TextRulePtr> rule = impl_->rules.json(schema, style, "warm-up");
    if (!rule.ok()) continue;
    TextCursor cursor(*impl_->table, *rule);
    std::vector<uint32_t> mask((static_cast<size_t>(impl_->table->size()) + 31) / 32);
    const std::string_view gap = style.item_separator.substr(1);
    for (const char c : fmt::format("{{\"a\\n\":{}[1.5e3,{}\"b\"]}}", gap, gap)) {
      cursor.add_mask(mask);
      if (const auto id = impl_->table->find({&c, 1})) cursor.accept(*id);
    }
  }
}

GrammarCompiler::CacheStats GrammarCompiler::cache_stats() const {
  const RuleCompiler::Stats stats = impl_->rules.stats();
  return {stats.entries, stats.bytes, stats.hits, stats.misses};
}

}  // namespace perigee::text
