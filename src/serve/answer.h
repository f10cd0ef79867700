// What    One answer while it is made: sampled tokens in, certain pieces of reasoning, content and tool calls out,
//         and why it ended. The pieces together are the same however the tokens were grouped. Stop strings are
//         searched in content alone (in a raw answer: in its whole text), never in markers, reasoning or arguments.
// Owner   serve.
// Threads One answer, one thread at a time; the tokenizer must outlive it.
// Errors  An id outside the vocabulary is a Status; nothing changes then.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "serve/stop_strings.h"
#include "text/detok.h"
#include "text/output_parser.h"

namespace perigee::serve {

struct AnswerRules {
  bool raw = false;         // no channels: all text is content
  bool thinking = true;     // the prompt ended inside the think channel
  bool drop_calls = false;  // tool_choice none
  bool one_call = false;    // parallel_tool_calls false: over after the first call
  bool drop_reasoning = false;
  bool skip_hidden = true;  // raw only
  bool score_only =
      false;  // the client wants the prompt's log-probabilities and no token: the first ends it, uncounted
  bool ignore_end = false;    // ignore_eos: the model's own end ids are passed over
  bool include_stop = false;  // the stop string stays in the text
  int64_t min_tokens = 0;     // stop strings count after that many
  std::shared_ptr<const StopStrings> stops;
  std::vector<int32_t> end_ids;   // the model's own
  std::vector<int32_t> stop_ids;  // the client's
};

// What matched, for the client: nothing, an id or a string.
struct StopMatch {
  std::optional<int32_t> id;
  std::optional<std::string> text;
};

class Answer {
 public:
  Answer(const text::Tokenizer& tokenizer, std::shared_ptr<const AnswerRules> rules);

  // One sampled token. Appends pieces; no kDone event is ever among them.
  Status push(int32_t id, std::vector<text::OutputEvent>& pieces);
  // The engine made no more tokens. Nothing happens if the answer was over before.
  void finish(text::StopCause cause, std::vector<text::OutputEvent>& pieces);

  bool over() const { return over_; }
  text::FinishReason reason() const { return reason_; }
  const StopMatch& match() const { return match_; }
  bool spoke() const;  // there is content, be it empty
  int64_t tokens() const { return tokens_; }
  int64_t reasoning_tokens() const { return parser_.has_value() ? parser_->reasoning_tokens() : 0; }

 private:
  void take(std::vector<text::OutputEvent>& pieces);
  void content(const std::string& text, std::vector<text::OutputEvent>& pieces);
  void release(std::vector<text::OutputEvent>& pieces);
  void end(text::FinishReason reason);

  std::shared_ptr<const AnswerRules> rules_;
  std::optional<text::OutputParser> parser_;
  text::Detokenizer plain_;
  StopMatcher stops_;
  std::vector<text::OutputEvent> events_;  // of the token under way
  StopMatch match_;
  text::FinishReason reason_ = text::FinishReason::kStop;
  bool over_ = false;
  int64_t tokens_ = 0;
};

}  // namespace perigee::serve
