#include "apps/answer.h"

#include <cstdio>

namespace perigee::apps {

AnswerReader::AnswerReader(const text::Tokenizer* tokenizer, AnswerStyle style, std::vector<int32_t> stop_ids) {
  if (tokenizer == nullptr) return;
  if (style.chat) {
    parser_ = std::make_unique<text::OutputParser>(
        *tokenizer, text::OutputParser::Options{style.thinking, style.drop_calls, std::move(stop_ids)});
  } else {
    detok_ = std::make_unique<text::Detokenizer>(*tokenizer);
  }
}

void AnswerReader::add_text(const std::string& text) {
  if (text.empty()) return;
  plain_ += text;
  text::OutputEvent event;
  event.text = text;
  events_.push_back(std::move(event));
}

const std::vector<text::OutputEvent>& AnswerReader::push(int32_t id) {
  events_.clear();
  if (parser_) {
    // An embedding may have more rows than the tokenizer has ids; such an id has no text.
    const Status known = parser_->push(id, events_);
    (void)known;
  } else if (detok_) {
    const Result<std::string> text = detok_->push(id);
    if (text.ok()) add_text(*text);
  }
  return events_;
}

const std::vector<text::OutputEvent>& AnswerReader::finish(engine::Finish finish) {
  events_.clear();
  finish_ = finish;
  if (parser_) {
    const text::StopCause cause = finish == engine::Finish::kStop     ? text::StopCause::kNatural
                                  : finish == engine::Finish::kLength ? text::StopCause::kLength
                                                                      : text::StopCause::kAbort;
    parser_->finish(cause, events_);
  } else if (detok_) {
    add_text(detok_->flush());
  }
  return events_;
}

Answer AnswerReader::answer() const {
  if (parser_) return {parser_->result(), parser_->reasoning_tokens()};
  Answer answer;
  answer.parsed.content = plain_;
  answer.parsed.finish_reason = finish_ == engine::Finish::kStop     ? text::FinishReason::kStop
                                : finish_ == engine::Finish::kLength ? text::FinishReason::kLength
                                                                     : text::FinishReason::kAbort;
  return answer;
}

void AnswerPrinter::aside(const std::string& text) {
  if (!in_aside_ && terminal_) std::fputs("\x1b[2m", stderr);
  in_aside_ = true;
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

void AnswerPrinter::leave_aside() {
  if (!in_aside_) return;
  std::fputs(terminal_ ? "\x1b[0m\n" : "\n", stderr);
  std::fflush(stderr);
  in_aside_ = false;
}

void AnswerPrinter::print(const std::vector<text::OutputEvent>& events) {
  using Kind = text::OutputEvent::Kind;
  for (const text::OutputEvent& e : events) {
    switch (e.kind) {
      case Kind::kReasoning: aside(e.text); break;
      case Kind::kContent:
        leave_aside();
        std::fwrite(e.text.data(), 1, e.text.size(), stdout);
        wrote_ = true;
        break;
      case Kind::kCallBegin:
        leave_aside();
        aside(fmt::format("call {} ", e.text));
        break;
      case Kind::kArguments: aside(e.text); break;
      case Kind::kCallEnd: leave_aside(); break;
      case Kind::kDone: break;
    }
  }
  std::fflush(stdout);
}

void AnswerPrinter::end() {
  leave_aside();
  if (wrote_) std::fputc('\n', stdout);
  std::fflush(stdout);
  wrote_ = false;
}

void AnswerPrinter::note(const std::string& text) {
  end();
  aside(text);
  leave_aside();
}

}  // namespace perigee::apps
