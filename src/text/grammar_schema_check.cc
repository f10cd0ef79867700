// The checks of grammar_schema.h.
#include <algorithm>
#include <array>

#include "text/grammar_schema.h"

namespace perigee::text {

namespace {

constexpr int kRefHopsMax = 32;

class SchemaChecker {
 public:
  SchemaChecker(const Json& root, const std::string& field, int64_t& copies)
      : root_(root), field_(field), copies_(copies) {}

  Status check(const Json& schema, const std::string& where, int depth) {
    if (schema.is_bool()) return {};
    if (!schema.is_object()) return wrong(where, "a schema (an object or a boolean)", schema);
    if (depth > kSchemaDepthMax) return invalid_argument("{} nests deeper than {} levels", field_, kSchemaDepthMax);
    if (++nodes_ > kSchemaNodesMax)
      return invalid_argument("{} has more than {} schemas in it", field_, kSchemaNodesMax);
    for (const auto& [key, value] : schema.members()) {
      const Status checked = check_member(key, value, where + "." + key, depth);
      if (!checked.ok()) return checked;
    }
    return {};
  }

 private:
  static Error wrong(const std::string& where, std::string_view wanted, const Json& value) {
    return invalid_argument("{} must be {}, not {}", where, wanted, value.kind_name());
  }

  template <size_t N>
  static bool is_one_of(const std::string& key, const std::array<std::string_view, N>& names) {
    return std::find(names.begin(), names.end(), key) != names.end();
  }

  Status check_member(const std::string& key, const Json& value, const std::string& where, int depth) {
    static constexpr std::array<std::string_view, 4> kMaps{"properties", "patternProperties", "$defs", "definitions"};
    static constexpr std::array<std::string_view, 4> kLists{"anyOf", "oneOf", "allOf", "prefixItems"};
    static constexpr std::array<std::string_view, 7> kSchemas{
        "additionalProperties", "items",         "not",     "unevaluatedProperties",
        "unevaluatedItems",     "propertyNames", "contains"};
    static constexpr std::array<std::string_view, 4> kNumbers{"minimum", "maximum", "exclusiveMinimum",
                                                              "exclusiveMaximum"};
    static constexpr std::array<std::string_view, 6> kCounts{"minLength", "maxLength",     "minItems",
                                                             "maxItems",  "minProperties", "maxProperties"};
    if (key == "type") return check_type(value, where);
    if (key == "$ref") return check_ref(value, where);
    if (key == "enum") return check_enum(value, where);
    if (key == "required") return check_required(value, where);
    if (key == "pattern" || key == "format") {
      if (!value.is_string()) return wrong(where, "a string", value);
      return key == "pattern" ? check_pattern(value.as_string(), where) : Status();
    }
    if (is_one_of(key, kMaps)) return check_map(value, where, depth, key == "patternProperties");
    if (is_one_of(key, kLists)) return check_list(value, where, depth);
    if (is_one_of(key, kCounts)) return check_count(value, where, key.ends_with("Properties"));
    if (is_one_of(key, kSchemas)) return check(value, where, depth + 1);
    if (is_one_of(key, kNumbers) && !value.is_number()) return wrong(where, "a number", value);
    return {};
  }

  // Patterns within JSON are built by copying, for each repetition, all that stands before it.
  Status check_pattern(const std::string& regex, const std::string& where) {
    if (const Status checked = check_regex(regex, where, &copies_); !checked.ok()) return checked;
    if (copies_ <= kSchemaPatternCopiesMax) return {};
    return invalid_argument("{} repeats too much, with the patterns before it; minLength and maxLength bound long strings",
                            where);
  }

  static Status check_type(const Json& value, const std::string& where) {
    static constexpr std::array<std::string_view, 7> kTypes{"string", "number", "integer", "boolean",
                                                            "null",   "object", "array"};
    const auto is_type = [](const Json& item) { return item.is_string() && is_one_of(item.as_string(), kTypes); };
    const bool good = value.is_array()
                          ? !value.items().empty() && std::all_of(value.items().begin(), value.items().end(), is_type)
                          : is_type(value);
    if (good) return {};
    return invalid_argument("{} must be string, number, integer, boolean, null, object or array, or a list of those",
                            where);
  }

  Status check_ref(const Json& value, const std::string& where) const {
    if (!value.is_string()) return wrong(where, "a string", value);
    const Json* target = resolve_ref(root_, value.as_string());
    for (int hops = 0; target != nullptr; ++hops) {
      const Json* next = target->find("$ref");
      if (next == nullptr || !next->is_string()) return {};
      if (hops == kRefHopsMax) return invalid_argument("{} \"{}\" leads back to itself", where, value.as_string());
      target = resolve_ref(root_, next->as_string());
    }
    return invalid_argument("{} \"{}\" names nothing in the schema; only #/... paths are followed", where,
                            value.as_string());
  }

  static Status check_enum(const Json& value, const std::string& where) {
    if (!value.is_array() || value.items().empty()) return invalid_argument("{} must be a non-empty list", where);
    if (value.items().size() <= kSchemaEnumMax) return {};
    return invalid_argument("{} has {} values; at most {} are allowed", where, value.items().size(), kSchemaEnumMax);
  }

  static Status check_required(const Json& value, const std::string& where) {
    const bool good = value.is_array() && std::all_of(value.items().begin(), value.items().end(),
                                                      [](const Json& item) { return item.is_string(); });
    return good ? Status() : invalid_argument("{} must be a list of strings", where);
  }

  static Status check_count(const Json& value, const std::string& where, bool of_properties) {
    const int64_t most = of_properties ? kSchemaPropertyCountMax : kSchemaCountMax;
    const bool whole = value.kind() == Json::Kind::kInteger;
    const Result<int64_t> number = whole ? value.as_int64() : Result<int64_t>(-1);
    if (number.ok() && *number >= 0 && *number <= most) return {};
    return invalid_argument("{} must be a whole number from 0 to {}", where, most);
  }

  Status check_map(const Json& value, const std::string& where, int depth, bool by_pattern) {
    if (!value.is_object()) return wrong(where, "an object", value);
    if (value.members().size() > kSchemaPropertiesMax) {
      return invalid_argument("{} has {} members; at most {} are allowed", where, value.members().size(),
                              kSchemaPropertiesMax);
    }
    for (const auto& [key, schema] : value.members()) {
      if (by_pattern) {
        if (const Status checked = check_pattern(key, where + " (a key)"); !checked.ok()) return checked;
      }
      if (const Status checked = check(schema, where + "." + key, depth + 1); !checked.ok()) return checked;
    }
    return {};
  }

  Status check_list(const Json& value, const std::string& where, int depth) {
    if (!value.is_array() || value.items().empty()) {
      return invalid_argument("{} must be a non-empty list of schemas", where);
    }
    for (size_t i = 0; i < value.items().size(); ++i) {
      const Status checked = check(value.items()[i], fmt::format("{}[{}]", where, i), depth + 1);
      if (!checked.ok()) return checked;
    }
    return {};
  }

  const Json& root_;
  const std::string& field_;
  int64_t nodes_ = 0;
  int64_t& copies_;
};

}  // namespace

Status check_schema(const Json& schema, const std::string& field, int64_t& copies) {
  if (const size_t bytes = print_json(schema, kJsonCompact).size(); bytes > kSchemaBytesMax) {
    return invalid_argument("{} has {} bytes; at most {} are allowed", field, bytes, kSchemaBytesMax);
  }
  return SchemaChecker(schema, field, copies).check(schema, field, 1);
}

const Json* resolve_ref(const Json& root, std::string_view ref) {
  if (!ref.starts_with('#')) return nullptr;
  const Json* at = &root;
  for (ref.remove_prefix(1); !ref.empty() && at != nullptr;) {
    if (!ref.starts_with('/')) return nullptr;
    ref.remove_prefix(1);
    const std::string_view part = ref.substr(0, ref.find('/'));
    ref.remove_prefix(part.size());
    std::string name;
    for (size_t i = 0; i < part.size(); ++i) {
      const bool escape = part[i] == '~' && i + 1 < part.size();
      name += escape ? (part[++i] == '1' ? '/' : '~') : part[i];
    }
    at = at->find(name);
  }
  return at;
}

}  // namespace perigee::text
