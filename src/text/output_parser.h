// What    Reads a model's answer in Kimi K3's wire format (chat.h), one token id at a time, into reasoning, content and tool
//         calls. Markers are recognised by their ids alone, so text that merely spells a marker is text.
//
//           state      header                                what happens
//           THINK      close think                           -> BETWEEN
//                      open response, open tools             the model skipped the close: reasoning ends, -> there
//                      open think                            swallowed (an echo of the prompt's end)
//           BETWEEN    open response / tools, close message  -> RESPONSE / TOOLS / TAIL; text is dropped
//           RESPONSE   close response                        -> BETWEEN
//                      open tools, close message             -> TOOLS / TAIL
//           TOOLS      open call tool="N"                    -> CALL, the name is given out; without a name: dropped
//                      close tools, close message            -> BETWEEN / TAIL; text is dropped
//           CALL       open argument key="K" type="T"        -> VALUE; `{` or `,` and `"K":` are given out
//                      open json                             -> JSON: the arguments as one text
//                      close call                            -> TOOLS, the call is complete
//           VALUE      text of type string                   escaped and given out at once
//                      text of another type                  kept to its end; JSON if it is JSON, else a JSON string
//                      close argument                        -> CALL
//           JSON       close json                            -> CALL; given out as JSON, else as a JSON string
//           TAIL       -                                     everything is dropped
//           any        <|end_of_msg|> or a stop id           the end
//
//         Further rules: `open think` elsewhere begins more reasoning, `open call` outside of TOOLS opens it, `open response`
//         does so from TOOLS. A call that something else than `close call` ends is incomplete and never a result.
//         Of arguments with the same key the first counts. Other markers with one of the format's own tags are swallowed;
//         markers with unknown tags, and headers over kHeaderBytesMax, are text of the channel they stand in; in a
//         VALUE or JSON so is every marker that does not end it or its call. Tokens that are hidden (tokenizer.h) are
//         dropped. A marker that never came to its <|sep|> is dropped.
//         Deltas are whole characters; what they add up to is the result, except for deltas of an incomplete call.
// Owner   text.
// Threads One answer, one thread; the tokenizer must outlive it.
// Errors  push() of an id outside the vocabulary is out_of_range and changes nothing.
// Cost    O(bytes) in all; held back are one header, one non-string value and at most three bytes of a character.
// Source  Kimi K3's format; the parsing bugs reported against public servers are cases in output_parser_test.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/tokenizer.h"
#include "text/utf8.h"
#include "text/xtml.h"

namespace perigee::text {

inline constexpr size_t kHeaderBytesMax =
    4096;  // a tag with its attributes; far more than any tool name needs

enum class FinishReason { kStop, kLength, kToolCalls, kAbort };
const char* finish_reason_name(FinishReason reason);  // "stop", "length", "tool_calls", "abort"

enum class StopCause { kNatural, kLength, kAbort };  // why the engine made no more tokens

struct OutputEvent {
  enum class Kind {
    kReasoning,  // text
    kContent,    // text
    kCallBegin,  // call, text = the tool's name
    kArguments,  // call, text = a piece of the arguments' JSON
    kCallEnd,    // call
    kDone,       // finish
  };
  Kind kind = Kind::kContent;
  int call = -1;  // which call, from 0
  std::string text;
  FinishReason finish = FinishReason::kStop;

  friend bool operator==(const OutputEvent&, const OutputEvent&) = default;
};

struct ParsedCall {
  int index = 0;  // as in the events; an incomplete call leaves a gap
  std::string name;
  std::string arguments_json;

  friend bool operator==(const ParsedCall&, const ParsedCall&) = default;
};

struct ParsedOutput {
  std::string reasoning;
  std::optional<std::string>
      content;  // none: the answer never came to speak, or holds calls and no text
  std::vector<ParsedCall> tool_calls;  // complete ones
  FinishReason finish_reason = FinishReason::kStop;

  friend bool operator==(const ParsedOutput&, const ParsedOutput&) = default;
};

class OutputParser {
 public:
  struct Options {
    bool thinking = true;  // the prompt ended inside the think channel (else: inside the response)
    bool drop_calls = false;        // tool_choice none: calls are read and forgotten
    std::vector<int32_t> stop_ids;  // ends besides <|end_of_msg|>
  };
  OutputParser(const Tokenizer& tokenizer, Options options);

  // Appends what the id makes certain to `events`. Ids after the end are ignored.
  Status push(int32_t id, std::vector<OutputEvent>& events);
  // The engine stopped. Nothing happens if an end token came before.
  void finish(StopCause cause, std::vector<OutputEvent>& events);

  bool done() const { return done_; }
  bool in_reasoning() const { return state_ == State::kThink; }
  int64_t reasoning_tokens() const { return reasoning_tokens_; }  // markers of the channel included
  // All that was given out so far, without an incomplete call; final once done().
  const ParsedOutput& result() const { return result_; }

 private:
  enum class State { kThink, kBetween, kResponse, kTools, kCall, kValue, kJson, kTail };
  enum class Marker { kNone, kOpen, kClose };

  struct Call {
    bool dropped = false;
    int index = -1;
    std::string name;
    std::string arguments;
    std::set<std::string> keys;
    bool has_json = false;
  };
  struct Value {
    bool dropped = false;
    bool is_string = false;
    std::string buffer;  // of what is no string
  };

  void begin_marker(Marker marker);
  void end_marker();
  bool on_open(const xtml::Header& header);
  bool on_close(std::string_view tag);
  bool close_in_call(std::string_view tag);
  void marker_is_text(bool with_sep);

  void add_text(std::string_view bytes);
  void put_text(const std::string& text);
  void enter(State state);
  void begin_call(const xtml::Header& header);
  void end_call();
  void begin_value(const xtml::Header& header);
  void end_value();
  void begin_json();
  void end_json();
  void add_arguments(const std::string& text);
  void emit(OutputEvent::Kind kind, const std::string& text, int call = -1);

  const Tokenizer* tokenizer_;
  Options options_;
  int32_t open_id_, close_id_, sep_id_;  // -1: the tokenizer has none, all is plain text

  State state_;
  Marker marker_ = Marker::kNone;
  std::string header_;
  Utf8Stream utf8_;
  Call call_;
  Value value_;
  int calls_begun_ = 0;
  bool spoke_ = false;  // the response channel was open
  bool done_ = false;
  int64_t reasoning_tokens_ = 0;
  ParsedOutput result_;
  std::vector<OutputEvent>* events_ = nullptr;  // of the call under way
};

// A finished answer at once.
Result<ParsedOutput> parse_output(const Tokenizer& tokenizer, const OutputParser::Options& options,
                                  std::span<const int32_t> ids, StopCause cause);

}  // namespace perigee::text
