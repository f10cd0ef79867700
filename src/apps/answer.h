// What    A model's answer on its way to the reader: ids in, reasoning, content and tool calls out, printed as they come.
// Owner   apps.
// Threads One answer at a time.
// Errors  None: ids come from the model.
#pragma once

#include <memory>
#include <vector>

#include "engine/engine.h"
#include "text/detok.h"
#include "text/output_parser.h"

namespace perigee::apps {

struct AnswerStyle {
  bool chat = false;        // the answer is in the chat format; else it is plain text
  bool thinking = false;    // the prompt ended inside the think channel
  bool drop_calls = false;  // tool_choice none
};

struct Answer {
  text::ParsedOutput parsed;  // of plain text: content alone
  int64_t reasoning_tokens = 0;
};

class AnswerReader {
 public:
  // Without a tokenizer ids are counted and nothing is read.
  AnswerReader(const text::Tokenizer* tokenizer, AnswerStyle style, std::vector<int32_t> stop_ids);

  // What this id makes certain; valid until the next call.
  const std::vector<text::OutputEvent>& push(int32_t id);
  const std::vector<text::OutputEvent>& finish(engine::Finish finish);
  Answer answer() const;

 private:
  void add_text(const std::string& text);

  std::unique_ptr<text::OutputParser> parser_;  // chat
  std::unique_ptr<text::Detokenizer> detok_;    // plain text
  std::string plain_;
  engine::Finish finish_ = engine::Finish::kLength;
  std::vector<text::OutputEvent> events_;
};

// Content goes to stdout; reasoning and tool calls go to stderr, dimmed on a terminal, so that stdout is the answer.
class AnswerPrinter {
 public:
  explicit AnswerPrinter(bool terminal) : terminal_(terminal) {}
  void print(const std::vector<text::OutputEvent>& events);
  // Ends the line.
  void end();
  // A line of ours after the answer, on stderr.
  void note(const std::string& text);

 private:
  void aside(const std::string& text);
  void leave_aside();

  bool terminal_;
  bool in_aside_ = false;
  bool wrote_ = false;
};

}  // namespace perigee::apps
