// What    Log-probabilities in the shape of OpenAI's older completions: parallel lists of tokens, their
//         log-probabilities, alternatives by text, and where each token begins in the text (in code points).
//         A token that is no text on its own is named bytes:\xNN, so that names stay different.
// Owner   serve.
// Threads One choice, one thread at a time; the tokenizer must outlive it.
// Errors  None.
// Source  OpenAI's completions; what lm-evaluation-harness reads.
#pragma once

#include <cstdint>
#include <string>

#include "engine/backend.h"
#include "text/detok.h"
#include "text/tokenizer.h"

namespace perigee::serve {

class LegacyLogprobs {
 public:
  struct Options {
    int64_t top = 0;
    bool skip_hidden = true;
    bool as_ids = false;
  };
  LegacyLogprobs(const text::Tokenizer& tokenizer, Options options)
      : tokenizer_(&tokenizer), options_(options), text_(tokenizer, {.skip_hidden = options.skip_hidden}) {}

  // `token` is null where nothing is known: at the first token of a prompt.
  void add(int32_t id, const engine::TokenLogprob* token);
  // What follows does not continue a character of the prompt.
  void end_of_prompt();
  // The object of all tokens since the last call.
  void append(std::string& out);

 private:
  void add_top(const engine::TokenLogprob& token);
  std::string name(int32_t id) const;

  const text::Tokenizer* tokenizer_;
  Options options_;
  text::Detokenizer text_;
  int64_t code_points_ = 0;
  std::string tokens_, logprobs_, top_, offsets_;
};

}  // namespace perigee::serve
