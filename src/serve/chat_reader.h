// What    Reads another server's answer to a chat-completions request, streamed or whole, into the same events that our own
//         parser of a model's output gives.
// Owner   serve, the client's side.
// Threads One answer, one thread.
// Errors  One sentence: the stream reports an error, is no stream of chunks, or ends before its [DONE]. What was given out
//         until then stays valid.
// Source  OpenAI's chat.completion and chat.completion.chunk; reasoning comes as `reasoning` or as `reasoning_content`, or as
//         both with the same text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "serve/sse_reader.h"
#include "text/json.h"
#include "text/output_parser.h"

namespace perigee::serve {

struct AnswerUsage {
  int64_t prompt = 0;
  int64_t completion = 0;
  int64_t reasoning = 0;  // part of completion

  friend bool operator==(const AnswerUsage&, const AnswerUsage&) = default;
};

struct ChatAnswer {
  std::string content;
  std::string reasoning;
  std::string reasoning_field;  // the name it came under; empty: there was none
  std::string finish_reason;    // empty: none was given
  std::optional<AnswerUsage> usage;
};

class ChatReader {
 public:
  // A piece of a stream of events; appends what it makes certain to `events`. Nothing is read after [DONE].
  Status feed(std::string_view bytes, std::vector<text::OutputEvent>& events);
  // The stream is over.
  Status finish() const;
  // Instead of a stream: the whole answer of a server that does not stream.
  Status read_whole(std::string_view body, std::vector<text::OutputEvent>& events);

  bool done() const { return done_; }
  const ChatAnswer& answer() const { return answer_; }

 private:
  Status read_chunk(const SseEvent& event, std::vector<text::OutputEvent>& events);
  Status read_choice(const text::Json& choice, const char* part, std::vector<text::OutputEvent>& events);
  Status read_part(const text::Json& part, std::vector<text::OutputEvent>& events);
  Status read_calls(const text::Json& calls, std::vector<text::OutputEvent>& events);
  void read_usage(const text::Json& usage);
  void end_call(std::vector<text::OutputEvent>& events);

  SseReader sse_;
  std::vector<SseEvent> held_;
  ChatAnswer answer_;
  int64_t call_ = -1;  // the one that is open
  bool done_ = false;
};

// What a server says about a refusal, on one line without control characters: the message of OpenAI's error body, `detail` or
// `message` of others, or the beginning of a body that is plain text. Empty: it says nothing that a person could read.
std::string error_message_of(std::string_view body);
// The same for the value of a member `error`: an object with `message`, or a text.
std::string error_message_of(const text::Json& error);

}  // namespace perigee::serve
