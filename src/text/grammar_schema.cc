#include "text/grammar_schema.h"

#include <algorithm>
#include <array>
#include <set>

#include "text/utf8.h"
#include "text/xtml.h"

namespace perigee::text {

namespace {

constexpr int kBranchHopsMax = 32;    // of $ref, anyOf and oneOf before a schema says its type
constexpr size_t kBranchesMax = 256;  // types and alternatives of one argument
constexpr std::array<std::string_view, 6> kWireTypes{"string", "number", "boolean", "null", "object", "array"};
constexpr std::array<std::string_view, 8> kAnnotations{"title",    "description", "default", "examples",
                                                       "$comment", "$schema",     "$defs",   "definitions"};
constexpr size_t kKeyBytesMax = 256;  // of an argument
constexpr const char* kAnyText = "[\\s\\S]*";

bool is_annotation(const std::string& key) {
  return std::find(kAnnotations.begin(), kAnnotations.end(), key) != kAnnotations.end();
}

Json text_json(std::string_view text) {
  return Json::string(std::string(text));
}

// The alternatives of a regular expression on its outermost level.
std::vector<std::string> split_alternatives(std::string_view regex) {
  std::vector<std::string> parts(1);
  int depth = 0;
  bool in_class = false;
  for (size_t at = 0; at < regex.size(); ++at) {
    const char c = regex[at];
    if (c == '|' && depth == 0 && !in_class) {
      parts.emplace_back();
      continue;
    }
    parts.back() += c;
    if (c == '\\' && at + 1 < regex.size()) parts.back() += regex[++at];
    if (c == '[') in_class = true;
    if (c == ']') in_class = false;
    if (!in_class && c == '(') ++depth;
    if (!in_class && c == ')') --depth;
  }
  return parts;
}

bool ends_in_anchor(std::string_view regex) {
  if (!regex.ends_with('$')) return false;
  size_t slashes = 0;
  while (slashes + 1 < regex.size() && regex[regex.size() - 2 - slashes] == '\\') ++slashes;
  return slashes % 2 == 0;
}

// JSON schema searches for a pattern anywhere in the text, the library matches the whole text: anchors become explicit.
// Characters beyond ASCII are escaped, since only then does the library keep quotes out of JSON strings.
std::string whole_text_pattern(std::string_view pattern) {
  std::string whole;
  for (std::string_view part : split_alternatives(pattern)) {
    const bool from_start = part.starts_with('^');
    if (from_start) part.remove_prefix(1);
    const bool to_end = ends_in_anchor(part);
    if (to_end) part.remove_suffix(1);
    whole +=
        fmt::format("{}{}{}{}", whole.empty() ? "" : "|", from_start ? "" : kAnyText, part, to_end ? "" : kAnyText);
  }
  std::string escaped;
  for (size_t at = 0; at < whole.size();) {
    const Utf8Step step = utf8_step(whole, at);
    const bool basic = step.code_point >= 0x80 && step.code_point <= 0xFFFF;
    escaped += basic ? fmt::format("\\u{:04x}", static_cast<uint32_t>(step.code_point)) : whole.substr(at, step.bytes);
    at += step.bytes;
  }
  return escaped;
}

// A checked schema as the library should read it: without annotations, patterns as whole_text_pattern(), lengths as
// patterns (its own lengths let raw control characters into JSON strings), and paths of $ref moved under `#/$defs/root`.
class SchemaCopier {
 public:
  Json copy(const Json& schema) {
    if (!schema.is_object()) return schema;
    std::vector<Json::Member> members;
    const bool shaped = schema.find("pattern") != nullptr || schema.find("format") != nullptr;
    const Json* shortest = shaped ? nullptr : schema.find("minLength");
    const Json* longest = shaped ? nullptr : schema.find("maxLength");
    for (const auto& [key, value] : schema.members()) {
      if (key == "minLength" || key == "maxLength") continue;
      const bool keeps = !is_annotation(key) || key == "$defs" || key == "definitions";
      if (keeps) members.emplace_back(key, copy_member(key, value));
    }
    if (shortest != nullptr || longest != nullptr) {
      members.emplace_back(
          "pattern", text_json(fmt::format("[\\s\\S]{{{},{}}}", shortest == nullptr ? "0" : shortest->number_lexeme(),
                                           longest == nullptr ? "" : longest->number_lexeme())));
    }
    return Json::object(std::move(members));
  }

  bool has_refs() const { return has_refs_; }

 private:
  Json copy_member(const std::string& key, const Json& value) {
    if (key == "$ref") {
      has_refs_ = true;
      return text_json("#/$defs/root" + value.as_string().substr(1));
    }
    if (key == "pattern") return text_json(whole_text_pattern(value.as_string()));
    if (key == "enum" || key == "const" || key == "type" || key == "required") return value;
    const bool is_map = key == "properties" || key == "patternProperties" || key == "$defs" || key == "definitions";
    if (value.is_object() && !is_map) return copy(value);
    if (value.is_object()) {
      std::vector<Json::Member> members;
      for (const auto& [name, schema] : value.members()) members.emplace_back(name, copy(schema));
      return Json::object(std::move(members));
    }
    if (!value.is_array()) return value;
    std::vector<Json> items;
    for (const Json& item : value.items()) items.push_back(copy(item));
    return Json::array(std::move(items));
  }

  bool has_refs_ = false;
};

// `schemas` as alternatives, with `root` at hand for their references.
Json with_root(const std::vector<Json>& schemas, const Json& root) {
  SchemaCopier copier;
  std::vector<Json> copies;
  for (const Json& schema : schemas) copies.push_back(copier.copy(schema));
  std::vector<Json::Member> members;
  if (copies.size() > 1) {
    members.emplace_back("anyOf", Json::array(std::move(copies)));
  } else if (copies[0].is_object()) {
    members = copies[0].members();
  }
  if (!copier.has_refs()) return Json::object(std::move(members));
  std::erase_if(members, [](const Json::Member& member) { return member.first == "$defs"; });
  members.emplace_back("$defs", Json::object({{"root", copier.copy(root)}}));
  return Json::object(std::move(members));
}

// One type that a value may have, and the schema that says more about it.
struct Branch {
  std::string type;  // as on the wire
  const Json* schema = nullptr;
};

std::string_view wire_type(const Json& value) {
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

// The values that enum or const list; nothing if the schema has neither.
std::optional<std::vector<Json>> listed_values(const Json& schema) {
  if (const Json* only = schema.find("const")) return std::vector<Json>{*only};
  if (const Json* list = schema.find("enum")) return list->items();
  return std::nullopt;
}

class ArgumentReader {
 public:
  ArgumentReader(RuleCompiler& rules, const Json& root, std::string field)
      : rules_(rules), root_(root), field_(std::move(field)) {}

  // The rules of one argument, one for each type that `schema` allows.
  Result<std::vector<ValueRule>> values(const Json& schema) {
    branches_.clear();
    if (const Status split = split_branches(schema, 0); !split.ok()) return split.error();
    std::vector<ValueRule> rules;
    for (const std::string_view type : kWireTypes) {
      std::vector<const Json*> schemas;
      for (const Branch& branch : branches_) {
        if (branch.type == type) schemas.push_back(branch.schema);
      }
      if (schemas.empty()) continue;
      Result<TextRulePtr> rule = type == "string" ? string_rule(schemas) : json_rule(std::string(type), schemas);
      if (!rule.ok()) return rule.error();
      rules.push_back({std::string(type), std::move(*rule)});
    }
    return rules;
  }

 private:
  Status split_branches(const Json& schema, int hops) {
    if (hops > kBranchHopsMax || branches_.size() > kBranchesMax) {
      return invalid_argument("{} has too many alternatives within each other", field_);
    }
    if (schema.is_bool()) {
      if (schema.as_bool()) add_types(std::vector<std::string_view>(kWireTypes.begin(), kWireTypes.end()), schema);
      return {};
    }
    if (!schema.is_object()) return invalid_argument("{} refers to something that is no schema", field_);
    if (const Json* ref = schema.find("$ref")) {
      const Json* target = resolve_ref(root_, ref->as_string());
      return target == nullptr ? invalid_argument("{} has a $ref to nothing", field_)
                               : split_branches(*target, hops + 1);
    }
    size_t constraints = 0;
    const Json* alternatives = nullptr;
    for (const auto& [key, value] : schema.members()) {
      if (is_annotation(key)) continue;
      ++constraints;
      if (key == "anyOf" || key == "oneOf" || (key == "allOf" && value.items().size() == 1)) alternatives = &value;
    }
    if (alternatives == nullptr || constraints > 1) {
      add_types(types_of(schema), schema);
      return {};
    }
    for (const Json& alternative : alternatives->items()) {
      if (const Status split = split_branches(alternative, hops + 1); !split.ok()) return split;
    }
    return {};
  }

  void add_types(const std::vector<std::string_view>& types, const Json& schema) {
    for (const std::string_view type : types) branches_.push_back({std::string(type), &schema});
  }

  static std::vector<std::string_view> types_of(const Json& schema) {
    std::set<std::string_view> types;
    const auto wire = [](std::string_view type) { return type == "integer" ? std::string_view("number") : type; };
    if (const Json* type = schema.find("type")) {
      if (type->is_string()) types.insert(wire(type->as_string()));
      if (type->is_array()) {
        for (const Json& item : type->items()) types.insert(wire(item.as_string()));
      }
    } else if (schema.find("properties") != nullptr || schema.find("additionalProperties") != nullptr) {
      types.insert("object");
    } else if (schema.find("items") != nullptr || schema.find("prefixItems") != nullptr) {
      types.insert("array");
    } else {
      types.insert(kWireTypes.begin(), kWireTypes.end());
    }
    if (const auto listed = listed_values(schema)) {
      std::set<std::string_view> present;
      for (const Json& value : *listed) present.insert(wire_type(value));
      std::erase_if(types, [&](std::string_view type) { return !present.contains(type); });
    }
    return {types.begin(), types.end()};
  }

  Result<TextRulePtr> string_rule(const std::vector<const Json*>& schemas) {
    std::vector<std::string> literals;
    std::vector<const Json*> open;  // that list no values
    for (const Json* schema : schemas) {
      const auto values = listed_values(*schema);
      if (!values) open.push_back(schema);
      for (const Json& value : values.value_or(std::vector<Json>{})) {
        if (value.is_string()) literals.push_back(value.as_string());
      }
    }
    if (open.empty()) return literals_rule(std::move(literals));
    if (open.size() > 1 || !literals.empty()) return text_rule(0, -1);  // alternatives of strings: left to the model
    const Json& schema = *open[0];
    if (const Json* pattern = schema.find("pattern")) {
      return rules_.regex(whole_text_pattern(pattern->as_string()), field_ + ".pattern");
    }
    const auto count = [&](const char* key, int64_t otherwise) {
      const Json* value = schema.find(key);
      return value == nullptr ? otherwise : *value->as_int64();
    };
    const int64_t shortest = count("minLength", 0);
    const int64_t longest = count("maxLength", -1);
    if (longest >= 0 && shortest > longest) return invalid_argument("{}: minLength is over maxLength", field_);
    return text_rule(shortest, longest);
  }

  Result<TextRulePtr> json_rule(const std::string& type, const std::vector<const Json*>& schemas) {
    if (type == "null") return literals_rule({"null"});
    std::vector<Json> listed;
    std::vector<Json> open;  // that list no values
    for (const Json* schema : schemas) {
      const auto values = listed_values(*schema);
      if (!values) open.push_back(of_type(*schema, type));
      for (const Json& value : values.value_or(std::vector<Json>{})) {
        if (wire_type(value) == type) listed.push_back(value);
      }
    }
    if (open.empty()) {
      std::vector<std::string> literals;
      for (const Json& value : listed) literals.push_back(print_json(value));
      return literals_rule(std::move(literals));
    }
    if (type == "boolean") return literals_rule({"false", "true"});
    if (!listed.empty()) open.push_back(Json::object({{"enum", Json::array(std::move(listed))}}));
    return rules_.json(with_root(open, root_), kJsonDefault, field_);
  }

  // The schema, narrowed to one wire type.
  static Json of_type(const Json& schema, const std::string& type) {
    std::vector<Json::Member> members;
    bool whole_numbers = type == "number";
    if (schema.is_object()) {
      for (const auto& [key, value] : schema.members()) {
        if (key != "type") members.emplace_back(key, value);
      }
      const Json* types = schema.find("type");
      const auto is_integer = [](const Json& item) { return item.as_string() == "integer"; };
      const auto is_number = [](const Json& item) { return item.as_string() == "number"; };
      const std::vector<Json> named = types == nullptr    ? std::vector<Json>{}
                                      : types->is_array() ? types->items()
                                                          : std::vector<Json>{*types};
      whole_numbers &=
          std::any_of(named.begin(), named.end(), is_integer) && std::none_of(named.begin(), named.end(), is_number);
    } else {
      whole_numbers = false;
    }
    members.emplace_back("type", text_json(whole_numbers ? "integer" : type));
    return Json::object(std::move(members));
  }

  RuleCompiler& rules_;
  const Json& root_;
  std::string field_;
  std::vector<Branch> branches_;
};

// EBNF of the header of an argument whose key is none of `known`: a walk along their prefixes, from which the key must part.
class OtherHeader {
 public:
  OtherHeader(const std::vector<ArgumentRule>& known, const std::vector<ValueRule>& values) {
    std::vector<std::string> words;
    for (const ArgumentRule& argument : known) words.push_back(xtml::escape_attribute(argument.key));
    std::string types;
    for (const ValueRule& value : values) types += fmt::format("{}\"{}\"", types.empty() ? "" : " | ", value.type);
    text_ =
        fmt::format("root ::= \"argument key=\\\"\" {} \"\\\" type=\\\"\" ({}) \"\\\"\"\n", add_rule(words, 0), types);
    text_ += "more ::= any*\nany ::= [^\"&\\n] | \"&amp;\" | \"&quot;\"\n" + rules_;
  }
  const std::string& text() const { return text_; }

 private:
  // The rule for keys that begin as all of `words` do up to `at`.
  std::string add_rule(const std::vector<std::string>& words, size_t at) {
    if (words.empty()) return "more";
    const std::string name = fmt::format("key{}", count_++);
    std::vector<std::string> choices;
    std::string nexts;
    bool ends = at == 0;  // no empty key; and none that is a whole word
    for (size_t from = 0; from < words.size();) {
      if (words[from].size() == at) {
        ends = true;
        ++from;
        continue;
      }
      const Utf8Step step = utf8_step(words[from], at);
      size_t to = from;
      const std::string_view character = std::string_view(words[from]).substr(at, step.bytes);
      while (to < words.size() && std::string_view(words[to]).substr(at, step.bytes) == character) ++to;
      const std::string code = fmt::format("\\U{:08x}", static_cast<uint32_t>(step.code_point));
      const std::vector<std::string> same(words.begin() + static_cast<ptrdiff_t>(from),
                                          words.begin() + static_cast<ptrdiff_t>(to));
      if (step.code_point != '&') {  // an escape is kept whole: keys that part inside one are not offered
        choices.push_back(fmt::format("\"{}\" {}", code, add_rule(same, at + step.bytes)));
        nexts += code;
      }
      from = to;
    }
    choices.push_back(fmt::format("[^\"&\\n{}] more", nexts));
    if (!ends) choices.push_back("\"\"");
    rules_ += fmt::format("{} ::= {}\n", name, fmt::join(choices, " | "));
    return name;
  }

  int count_ = 0;
  std::string rules_;
  std::string text_;
};

Result<ToolRule> with_other_keys(RuleCompiler& rules, ToolRule tool, std::vector<ValueRule> values,
                                 const std::string& field) {
  std::vector<ArgumentRule> sorted = tool.arguments;
  std::sort(sorted.begin(), sorted.end(), [](const ArgumentRule& a, const ArgumentRule& b) {
    return xtml::escape_attribute(a.key) < xtml::escape_attribute(b.key);
  });
  Result<TextRulePtr> header = rules.ebnf(OtherHeader(sorted, values).text(), field);
  if (!header.ok()) return header.error();
  tool.other_header = std::move(*header);
  tool.other_values = std::move(values);
  return tool;
}

}  // namespace

Result<TextRulePtr> schema_rule(RuleCompiler& rules, const Json& schema, const std::string& field) {
  return rules.json(with_root({schema}, schema), kJsonCompact, field);
}

Result<ToolRule> tool_rule(RuleCompiler& rules, const std::string& name, const Json& parameters,
                           const std::string& field, int64_t& copies) {
  if (const Status checked = check_schema(parameters, field, copies); !checked.ok()) return checked.error();
  const Json* schema = &parameters;
  if (const Json* ref = parameters.find("$ref")) schema = resolve_ref(parameters, ref->as_string());
  const Json* type = schema->find("type");
  if (type != nullptr && !(type->is_string() && type->as_string() == "object")) {
    return invalid_argument("{}.type must be \"object\"", field);
  }
  for (const char* key : {"$ref", "anyOf", "oneOf", "allOf", "enum", "const", "patternProperties"}) {
    if (schema->find(key) != nullptr) return invalid_argument("{}.{} cannot be followed in arguments", field, key);
  }
  ToolRule tool;
  tool.name = name;
  std::set<std::string> required;
  if (const Json* keys = schema->find("required")) {
    for (const Json& key : keys->items()) required.insert(key.as_string());
  }
  const Json* properties = schema->find("properties");
  for (const auto& [key, value] : properties == nullptr ? std::vector<Json::Member>{} : properties->members()) {
    const std::string where = fmt::format("{}.properties.{}", field, key.substr(0, kKeyBytesMax));
    if (key.size() > kKeyBytesMax || key.empty() || !is_valid_utf8(key)) {
      return invalid_argument("{} must have 1 to {} bytes of UTF-8 in its name", where, kKeyBytesMax);
    }
    Result<std::vector<ValueRule>> values = ArgumentReader(rules, parameters, where).values(value);
    if (!values.ok()) return values.error();
    const bool needed = required.erase(key) > 0;
    if (needed && values->empty()) return invalid_argument("{} is required and allows no value", where);
    tool.arguments.push_back({key, needed, std::move(*values)});
  }
  if (!required.empty()) {
    return invalid_argument("{}.required names \"{}\", which is not in properties", field, *required.begin());
  }
  const Json* others = schema->find("additionalProperties");
  const Json any = Json::boolean(others == nullptr && (properties == nullptr || properties->members().empty()));
  const std::string where = field + ".additionalProperties";
  Result<std::vector<ValueRule>> values =
      ArgumentReader(rules, parameters, where).values(others == nullptr ? any : *others);
  if (!values.ok()) return values.error();
  if (values->empty()) return tool;
  return with_other_keys(rules, std::move(tool), std::move(*values), where);
}

Result<ToolRule> free_tool_rule(RuleCompiler& rules, const std::string& name) {
  int64_t copies = 0;
  return tool_rule(rules, name, Json::object({}), "tools", copies);
}

}  // namespace perigee::text
