// The prompts and constraints of completions (api_prompt.h).
#include <utility>

#include "serve/api_prompt.h"

namespace perigee::serve {

using text::Json;

namespace {

// A list whose first item is no list is one prompt of ids.
bool is_id_list(const Json& value) {
  return value.is_array() && !value.items().empty() && value.items()[0].is_number();
}

void add_prompt(Fields& fields, const ApiCore& core, const Json& value, std::vector<std::vector<int32_t>>& out) {
  std::vector<int32_t> ids;
  if (value.is_string()) {
    ids = core.tokenizer->encode_text(value.as_string());
  } else if (value.is_array()) {
    ids.reserve(value.items().size());
    for (const Json& item : value.items()) {
      const Result<int32_t> id = read_id(item, core.tokenizer->vocab_size(), fields.name("prompt"));
      if (!id.ok()) return fields.fail(api_error(id.error(), fields.name("prompt")));
      ids.push_back(*id);
    }
  } else {
    return fields.fail("prompt", fmt::format("must hold texts or lists of token ids, not {}", value.kind_name()));
  }
  if (ids.empty()) return fields.fail("prompt", "is empty; give at least one token");
  out.push_back(std::move(ids));
}

ConstraintSpec schema_spec(const Json& schema, std::string field) {
  ConstraintSpec spec;
  spec.kind = ConstraintSpec::Kind::kJsonSchema;
  spec.field = std::move(field);
  spec.schema = schema;
  return spec;
}

// {"type": "text" | "json_object" | "json_schema", ...}
std::optional<ConstraintSpec> read_format(Fields& fields, const Json& format) {
  if (!format.is_object()) {
    fields.fail("response_format", "must be an object");
    return std::nullopt;
  }
  Fields inner(format, fields.name("response_format."));
  const std::string type = inner.string("type", 64);
  std::optional<ConstraintSpec> spec;
  if (type == "json_object") {
    spec.emplace();
    spec->kind = ConstraintSpec::Kind::kJsonObject;
    spec->field = "response_format";
  } else if (type == "json_schema") {
    const Json* wrapper = inner.get("json_schema");
    const Json* schema = wrapper == nullptr ? nullptr : wrapper->find("schema");
    if (schema == nullptr || !schema->is_object()) {
      inner.fail("json_schema.schema", "must be an object");
    } else {
      spec = schema_spec(*schema, "response_format.json_schema.schema");
    }
  } else if (type != "text") {
    inner.fail("type", "must be text, json_object or json_schema");
  }
  if (inner.failed()) fields.fail(*inner.error());
  return spec;
}

void read_kind(Fields& inner, std::string_view key, const Json& value, ConstraintSpec& spec) {
  spec.field = inner.name(key);
  if (key == "json") {
    spec.kind = ConstraintSpec::Kind::kJsonSchema;
    if (!value.is_string()) {
      spec.schema = value;
    } else {
      Result<Json> schema = text::parse_json(value.as_string(), spec.field);
      if (!schema.ok()) return inner.fail(api_error(schema.error(), spec.field));
      spec.schema = std::move(*schema);
    }
    if (!spec.schema.is_object()) inner.fail(key, "must be a JSON schema: an object, or a text that holds one");
  } else if (key == "json_object") {
    spec.kind = ConstraintSpec::Kind::kJsonObject;
    inner.flag(key, true);
  } else if (key == "choice") {
    spec.kind = ConstraintSpec::Kind::kChoice;
    spec.choices = inner.strings(key, 4096, 65536);
    if (spec.choices.empty()) inner.fail(key, "must be a list of texts");
  } else {
    spec.kind = key == "regex" ? ConstraintSpec::Kind::kRegex : ConstraintSpec::Kind::kGrammar;
    spec.source = inner.string(key, 262144);
    if (spec.source.empty()) inner.fail(key, "must not be empty");
  }
}

}  // namespace

std::optional<ConstraintSpec> read_structured_outputs(Fields& fields) {
  const Json* outputs = fields.get("structured_outputs");
  if (outputs == nullptr || fields.failed()) return std::nullopt;
  if (!outputs->is_object()) {
    fields.fail("structured_outputs", "must be an object");
    return std::nullopt;
  }
  Fields inner(*outputs, fields.name("structured_outputs."));
  inner.refuse("structural_tag", "");
  std::optional<ConstraintSpec> spec;
  for (const char* key : {"json", "json_object", "regex", "choice", "grammar"}) {
    const Json* value = inner.get(key);
    if (value == nullptr || (value->is_bool() && !value->as_bool())) continue;
    if (spec.has_value()) inner.fail(key, "stands beside another constraint; give one");
    read_kind(inner, key, *value, spec.emplace());
  }
  if (!spec.has_value()) inner.fail("json", "is missing: give one of json, json_object, regex, choice, grammar");
  if (inner.failed()) fields.fail(*inner.error());
  return spec;
}

void truncate_prompt(Fields& fields, const CommonFields& common, std::vector<int32_t>& ids) {
  if (common.truncate_prompt == -1 || fields.failed()) return;
  if (common.truncate_prompt == 0) return fields.fail("truncate_prompt_tokens", "must be -1 or at least 1");
  const auto kept = static_cast<size_t>(common.truncate_prompt);
  if (ids.size() <= kept) return;
  if (common.truncate_left) {
    ids.erase(ids.begin(), ids.end() - static_cast<ptrdiff_t>(kept));
  } else {
    ids.resize(kept);
  }
}

std::vector<std::vector<int32_t>> read_prompts(Fields& fields, const ApiCore& core, const CommonFields& common) {
  std::vector<std::vector<int32_t>> out;
  const Json* prompt = fields.get("prompt");
  if (fields.failed()) return out;
  if (prompt == nullptr) {
    fields.fail("prompt", "is missing");
  } else if (!prompt->is_array() || is_id_list(*prompt)) {
    add_prompt(fields, core, *prompt, out);
  } else if (prompt->items().empty()) {
    fields.fail("prompt", "is an empty list");
  } else if (static_cast<int64_t>(prompt->items().size()) > core.options.limits.answers_max) {
    fields.fail("prompt", fmt::format("holds {} prompts; at most {} are allowed", prompt->items().size(),
                                      core.options.limits.answers_max));
  } else {
    for (const Json& one : prompt->items()) add_prompt(fields, core, one, out);
  }
  for (std::vector<int32_t>& ids : out) truncate_prompt(fields, common, ids);
  return out;
}

std::shared_ptr<text::Constraint> read_structured(Fields& fields, const ApiCore& core) {
  const Json* format = fields.get("response_format");
  if (fields.failed()) return nullptr;
  std::optional<ConstraintSpec> spec = read_structured_outputs(fields);
  if (format != nullptr) {
    std::optional<ConstraintSpec> other = read_format(fields, *format);
    if (spec.has_value() && other.has_value()) {
      fields.fail("structured_outputs", "stands beside response_format; give one");
    }
    if (other.has_value()) spec = std::move(other);
  }
  if (!spec.has_value() || fields.failed()) return nullptr;
  std::shared_ptr<text::Constraint> constraint;
  if (auto error = make_constraint(core, *spec, constraint)) fields.fail(std::move(*error));
  return constraint;
}

}  // namespace perigee::serve
