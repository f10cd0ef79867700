// What    The automaton of a whole answer: which control tokens may come, and which rule (grammar_text.h) the text between them
//         follows. It decides by token ids and reads headers as output_parser.h does.
//
//           phase      text           next
//           PLAIN      body           an end id when the body may end
//           THINK      free           close think -> THOUGHT; open response, open tools -> there; no end id
//           THOUGHT    -              open response
//           RESPONSE   body           close response; an empty one only if calls must follow it
//           SPOKE      -              open tools; close message, unless calls must come
//           TOOLS      -              open call, with the next index; close tools
//           CALL       -              open argument, each key once; close call when the required keys are there
//           VALUE      the argument's close argument
//           CALLED     -              close message
//           FREE       not looked at  calls that nothing constrains: close tools -> CALLED, close message -> TAIL,
//                                     open response -> RESPONSE
//           TAIL, END  -              an end id
//
//         Where nothing is looked at, every token is allowed and an end id ends the answer. Thoughts may be anything, but their
//         markers lead to the answer.
// Owner   text; grammar.h is the way in.
// Threads A plan is shared and never changes; a constraint belongs to one thread.
// Errors  accept() of a token that is not allowed aborts.
// Source  chat.h (the format).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/constraint.h"
#include "text/grammar_text.h"

namespace perigee::text {

// Drafts are far shorter; only so many tokens can be taken back.
inline constexpr int64_t kRollbackTokensMax = 256;

struct ValueRule {
  std::string type;  // of the wire format
  TextRulePtr text;
};

struct ArgumentRule {
  std::string key;
  bool required = false;
  std::vector<ValueRule> values;  // one for each type
};

struct ToolRule {
  std::string name;
  std::vector<ArgumentRule> arguments;
  TextRulePtr other_header;  // nullptr: no keys but those above
  std::vector<ValueRule> other_values;
};

enum class ToolUse { kNone, kFree, kRuled };

struct AnswerPlan {
  std::shared_ptr<const TokenTable> table;
  int32_t open = -1, close = -1, sep = -1;
  std::vector<int32_t> end_ids;
  bool plain = false;     // the body from the first token on, no channels
  bool thinking = false;  // the prompt ended in the think channel
  TextRulePtr body;
  ToolUse tool_use = ToolUse::kNone;
  bool silences_tools = false;  // there are tools, and they must not be called
  int calls_min = 0;
  int calls_max = 0;
  std::vector<ToolRule> tools;
};

std::shared_ptr<Constraint> make_constraint(std::shared_ptr<const AnswerPlan> plan);

}  // namespace perigee::text
