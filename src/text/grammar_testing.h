// What    What the tests of constrained decoding share: random answers under a mask, and a plain checker of JSON schemas.
// Owner   text; not for programs.
// Threads One sampler per thread.
// Errors  An answer that cannot go on, or does not end, fails the test that asked for it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar.h"
#include "text/testing.h"
#include "text/utf8.h"

namespace perigee::text::testing {

inline Json json_of(std::string_view text) {
  Result<Json> value = parse_json(text, "test");
  if (!value.ok()) check_failed(__FILE__, __LINE__, value.error().message);
  return std::move(*value);
}

inline GrammarCompiler demo_compiler() {
  return GrammarCompiler(demo_tokenizer(), {{*demo_tokenizer().special_id("[EOS]")}});
}

inline std::vector<uint32_t> mask_of(Constraint& constraint, const Tokenizer& tokenizer, bool& bound) {
  std::vector<uint32_t> mask((static_cast<size_t>(tokenizer.vocab_size()) + 31) / 32, 0);
  bound = constraint.fill_mask(mask);
  return mask;
}

inline bool allows(const std::vector<uint32_t>& mask, int32_t id) {
  return (mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0;
}

// Draws tokens that the mask allows until an end id comes. Early on any token may come; the longer the answer gets, the more
// it leans towards tokens that close something.
class Sampler {
 public:
  Sampler(const Tokenizer& tokenizer, uint64_t seed) : tokenizer_(tokenizer), random_(seed) {
    for (const std::string_view text : {"]", "}", "\""}) {
      closers_.push_back(tokenizer.encode_text(text).at(0));
    }
  }

  // `unbound` comes, one by one: up to its first separator, which ends the thoughts, and where nothing is looked at.
  std::vector<int32_t> answer(Constraint& constraint, std::vector<int32_t> unbound = {}, size_t patience = 60) {
    std::vector<int32_t> ids;
    size_t next_unbound = 0;
    const auto sep = std::find(unbound.begin(), unbound.end(), tokenizer_.special_id("<|sep|>").value_or(-1));
    const size_t thoughts = unbound.empty() || sep == unbound.end() ? 0 : static_cast<size_t>(sep - unbound.begin()) + 1;
    while (ids.size() < 4000) {
      bool bound = false;
      const std::vector<uint32_t> mask = mask_of(constraint, tokenizer_, bound);
      if (!bound && next_unbound == unbound.size()) break;
      const bool given = !bound || next_unbound < thoughts;
      const int32_t id = given ? unbound[next_unbound++] : draw(mask, ids.size() > patience);
      if (given && bound && !allows(mask, id)) ADD_FAILURE() << "token " << id << " is not allowed in a thought";
      if (id < 0) break;
      constraint.accept(id);
      ids.push_back(id);
      if (is_end(id)) return ids;
    }
    ADD_FAILURE() << "no end after " << ids.size() << " tokens: " << tokenizer_.decode(ids)->substr(0, 300);
    return ids;
  }

  bool is_end(int32_t id) const {
    return id == tokenizer_.special_id("[EOS]") || id == tokenizer_.special_id("<|end_of_msg|>");
  }
  uint64_t below(uint64_t n) { return random_() % n; }

 private:
  int32_t draw(const std::vector<uint32_t>& mask, bool impatient) {
    std::vector<int32_t> all, special, closing;
    for (int32_t id = 0; id < tokenizer_.vocab_size(); ++id) {
      // Lone lead bytes could make surrogates and overlong forms, which the library lets through (grammar_rules.h).
      const std::string_view bytes = *tokenizer_.token_bytes(id);
      if (!allows(mask, id) || bytes == "\xE0" || bytes == "\xED" || bytes == "\xF0" || bytes == "\xF4") continue;
      all.push_back(id);
      if (id >= tokenizer_.base_size()) special.push_back(id);
    }
    for (const int32_t id : closers_) {
      if (allows(mask, id)) closing.push_back(id);
    }
    const uint64_t chance = below(100);
    if (!special.empty() && (impatient || chance < 15)) return pick(special);
    if (!closing.empty() && chance < (impatient ? 90 : 30)) return pick(closing);
    return all.empty() ? -1 : pick(all);
  }
  int32_t pick(const std::vector<int32_t>& ids) { return ids[below(ids.size())]; }

  const Tokenizer& tokenizer_;
  std::mt19937_64 random_;
  std::vector<int32_t> closers_;
};

// Whether a value keeps to a schema; plain loops over the keywords that grammar_schema.h says are followed.
class SchemaJudge {
 public:
  explicit SchemaJudge(const Json& root) : root_(root) {}

  bool fits(const Json& value, const Json& schema) const {
    if (schema.is_bool()) return schema.as_bool();
    if (const Json* ref = schema.find("$ref")) return fits(value, *target(ref->as_string()));
    for (const char* key : {"anyOf", "oneOf"}) {
      const Json* list = schema.find(key);
      if (list != nullptr && std::none_of(list->items().begin(), list->items().end(),
                                          [&](const Json& item) { return fits(value, item); })) {
        return false;
      }
    }
    if (const Json* only = schema.find("const"); only != nullptr && !(*only == value)) return false;
    if (const Json* list = schema.find("enum")) {
      if (std::find(list->items().begin(), list->items().end(), value) == list->items().end()) return false;
    }
    return fits_type(value, schema) && (!value.is_string() || fits_string(value.as_string(), schema)) &&
           (!value.is_number() || fits_number(value.as_double(), schema)) &&
           (!value.is_array() || fits_array(value, schema)) && (!value.is_object() || fits_object(value, schema));
  }
  bool fits(const Json& value) const { return fits(value, root_); }

 private:
  const Json* target(std::string_view ref) const {
    const Json* at = &root_;
    for (ref.remove_prefix(1); !ref.empty();) {
      ref.remove_prefix(1);
      const std::string_view part = ref.substr(0, ref.find('/'));
      ref.remove_prefix(part.size());
      at = at->find(part);
    }
    return at;
  }

  static bool is_type(const Json& value, const std::string& type) {
    if (type == "integer") return value.is_number() && value.as_double() == std::trunc(value.as_double());
    return (type == "string" && value.is_string()) || (type == "number" && value.is_number()) ||
           (type == "boolean" && value.is_bool()) || (type == "null" && value.is_null()) ||
           (type == "object" && value.is_object()) || (type == "array" && value.is_array());
  }
  static bool fits_type(const Json& value, const Json& schema) {
    const Json* type = schema.find("type");
    if (type == nullptr) return true;
    if (type->is_string()) return is_type(value, type->as_string());
    return std::any_of(type->items().begin(), type->items().end(),
                       [&](const Json& item) { return is_type(value, item.as_string()); });
  }
  static bool within(double value, const Json& schema, const char* least, const char* most) {
    const Json* low = schema.find(least);
    const Json* high = schema.find(most);
    return (low == nullptr || value >= low->as_double()) && (high == nullptr || value <= high->as_double());
  }
  static bool fits_number(double value, const Json& schema) {
    const Json* over = schema.find("exclusiveMinimum");
    const Json* under = schema.find("exclusiveMaximum");
    return within(value, schema, "minimum", "maximum") && (over == nullptr || value > over->as_double()) &&
           (under == nullptr || value < under->as_double());
  }
  static bool fits_string(const std::string& value, const Json& schema) {
    const auto leads = std::count_if(value.begin(), value.end(), [](char c) { return (c & 0xC0) != 0x80; });
    const Json* pattern = schema.find("pattern");
    return is_valid_utf8(value) && within(static_cast<double>(leads), schema, "minLength", "maxLength") &&
           (pattern == nullptr || std::regex_search(value, std::regex(pattern->as_string())));
  }
  bool fits_array(const Json& value, const Json& schema) const {
    const Json* items = schema.find("items");
    return within(static_cast<double>(value.items().size()), schema, "minItems", "maxItems") &&
           (items == nullptr || std::all_of(value.items().begin(), value.items().end(),
                                            [&](const Json& item) { return fits(item, *items); }));
  }
  bool fits_object(const Json& value, const Json& schema) const {
    const Json* properties = schema.find("properties");
    const Json* others = schema.find("additionalProperties");
    if (const Json* required = schema.find("required")) {
      for (const Json& key : required->items()) {
        if (value.find(key.as_string()) == nullptr) return false;
      }
    }
    for (const auto& [key, member] : value.members()) {
      const Json* declared = properties == nullptr ? nullptr : properties->find(key);
      if (declared != nullptr ? !fits(member, *declared) : others != nullptr && !fits(member, *others)) return false;
      if (declared == nullptr && others == nullptr && properties != nullptr)
        return false;  // stricter than the standard
    }
    return within(static_cast<double>(value.members().size()), schema, "minProperties", "maxProperties");
  }

  const Json& root_;
};

}  // namespace perigee::text::testing
