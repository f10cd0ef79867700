// What    Constrained decoding: makes the constraints (constraint.h) that a request asks for.
//           completions  structured_outputs: a JSON schema, any JSON object, a regular expression, one of a list of texts, or
//                        an EBNF grammar, from the first token on, then an end id
//           chat         response_format or structured_outputs hold in the response channel alone, tool_choice and strict
//                        tools for the calls. Thoughts are free, but the answer cannot end in them.
//         With tools and tool_choice none the tools channel cannot be opened.
//         Calls are constrained if tool_choice is required (at least one call) or names a function (that one, once), or if it
//         is auto and a tool has strict: true. Then a strict tool's parameters must be ones that can be followed
//         (grammar_schema.h); any other tool whose parameters cannot be followed may have any arguments.
//         JSON of a response is on one line without spaces between tokens; that of arguments is spaced as Python prints it,
//         which is how the model saw it.
// Owner   text. One compiler per tokenizer; the tokenizer must outlive it.
// Threads Any. Each constraint belongs to one thread; constraints share compiled grammars.
// Errors  invalid_argument with one sentence that names the field: a 400 to a client.
// Cost    Well below a millisecond for a schema of usual size, nothing for one of the last ones seen. The first mask of a
//         state costs a pass over the vocabulary; warm_up() makes the masks that every JSON needs.
// Source  OpenAI's response_format and strict tools; vLLM's structured_outputs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "text/chat.h"
#include "text/constraint.h"
#include "text/json.h"
#include "text/tokenizer.h"

namespace perigee::text {

inline constexpr size_t kChoicesMax = 1'000;
inline constexpr size_t kChoiceBytesMax = 64 * 1024;  // of all choices together
inline constexpr size_t kRuledToolsMax = 512;

struct StructuredOutputs {
  enum class Kind { kJsonSchema, kJsonObject, kRegex, kChoice, kGrammar };
  Kind kind = Kind::kJsonObject;
  Json schema;                               // of kJsonSchema
  std::string source;                        // of kRegex and kGrammar
  std::vector<std::string> choices;          // of kChoice
  std::string field = "structured_outputs";  // for sentences: where it stood in the request
};

// From the value of `structured_outputs`: an object with exactly one of json (a schema, or the text of one), json_object
// (true), regex, choice and grammar.
Result<StructuredOutputs> parse_structured_outputs(const Json& value);

class GrammarCompiler {
 public:
  struct Options {
    std::vector<int32_t> stop_ids;  // end an answer besides <|end_of_msg|>
    int64_t cache_bytes_max = 64 << 20;
  };
  GrammarCompiler(const Tokenizer& tokenizer, Options options);
  ~GrammarCompiler();

  // nullptr if the request constrains nothing. `outputs` holds for the response channel in place of response_format.
  Result<std::shared_ptr<Constraint>> for_chat(const ChatRequest& request,
                                               const StructuredOutputs* outputs = nullptr) const;
  Result<std::shared_ptr<Constraint>> for_completion(const StructuredOutputs& wanted) const;

  // Makes the masks of strings, numbers and unknown objects ahead of the first request: a second for a large vocabulary.
  void warm_up() const;

  struct CacheStats {
    int64_t entries = 0;
    int64_t bytes = 0;
    int64_t hits = 0;
    int64_t misses = 0;
  };
  CacheStats cache_stats() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace perigee::text
