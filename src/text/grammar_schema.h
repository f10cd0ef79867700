// What    Checks clients' JSON schemas before anything is built from them, and reads a tool's `parameters` as the rules of its
//         call's arguments.
//
//         Followed: type, properties, required, additionalProperties, items, prefixItems, minItems, maxItems, minProperties,
//         maxProperties, enum, const, anyOf, oneOf (as anyOf), allOf of one, $ref within the document, minimum, maximum and
//         their exclusive forms, minLength, maxLength, pattern, format where xgrammar knows it. Left to the model, since a
//         mask cannot hold them: not, if/then/else, dependent*, uniqueItems, contains, multipleOf. An object that declares
//         properties allows no others unless additionalProperties says so.
//
//         Arguments: one rule per key and JSON type; string values are raw text (enum and const as a list, pattern as a
//         regular expression, else characters within minLength and maxLength), all others JSON as Python prints it.
// Owner   text; grammar.h is the way in.
// Threads Pure functions.
// Errors  invalid_argument with one sentence that names the place in the request.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "text/grammar_answer.h"
#include "text/grammar_rules.h"
#include "text/json.h"

namespace perigee::text {

inline constexpr size_t kSchemaBytesMax = 256 * 1024;
inline constexpr int kSchemaDepthMax = 64;
inline constexpr int64_t kSchemaNodesMax = 10'000;       // schemas within the schema
inline constexpr size_t kSchemaPropertiesMax = 1'000;    // of one object
inline constexpr size_t kSchemaEnumMax = 1'000;          // values of one list
inline constexpr int64_t kSchemaCountMax = 1'000'000;    // of lengths and numbers of items
inline constexpr int64_t kSchemaPropertyCountMax = 100;  // of minProperties and maxProperties, which cost a state each

// The sum over all repetitions {n} in the patterns of a request's schemas, each the parts of what is repeated times n squared:
// a{1000} and another one take half a second.
inline constexpr int64_t kSchemaPatternCopiesMax = 2'000'000;

// `copies` is counted on from schema to schema of one request.
Status check_schema(const Json& schema, const std::string& field, int64_t& copies);

// What "#/a/b" names in `root`; nullptr if nothing.
const Json* resolve_ref(const Json& root, std::string_view ref);

// The JSON text that checked `schema` allows.
Result<TextRulePtr> schema_rule(RuleCompiler& rules, const Json& schema, const std::string& field);

// Fails if a part of `parameters` cannot be followed.
Result<ToolRule> tool_rule(RuleCompiler& rules, const std::string& name, const Json& parameters,
                           const std::string& field, int64_t& copies);
// Any keys with any values.
Result<ToolRule> free_tool_rule(RuleCompiler& rules, const std::string& name);

}  // namespace perigee::text
