#include "serve/answer.h"

#include <algorithm>

namespace perigee::serve {

using text::FinishReason;
using text::OutputEvent;
using text::StopCause;

namespace {

bool contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

void add_piece(OutputEvent::Kind kind, int call, std::string text, std::vector<OutputEvent>& pieces) {
  const bool is_text = kind == OutputEvent::Kind::kReasoning || kind == OutputEvent::Kind::kContent ||
                       kind == OutputEvent::Kind::kArguments;
  if (is_text && !pieces.empty() && pieces.back().kind == kind && pieces.back().call == call) {
    pieces.back().text += text;
    return;
  }
  OutputEvent& piece = pieces.emplace_back();
  piece.kind = kind;
  piece.call = call;
  piece.text = std::move(text);
}

text::OutputParser::Options parser_options(const AnswerRules& rules) {
  text::OutputParser::Options options;
  options.thinking = rules.thinking;
  options.drop_calls = rules.drop_calls;
  options.stop_ids = rules.stop_ids;
  if (!rules.ignore_end) options.stop_ids.insert(options.stop_ids.end(), rules.end_ids.begin(), rules.end_ids.end());
  return options;
}

}  // namespace

Answer::Answer(const text::Tokenizer& tokenizer, std::shared_ptr<const AnswerRules> rules)
    : rules_(std::move(rules)), plain_(tokenizer, {.skip_hidden = rules_->skip_hidden}), stops_(rules_->stops) {
  if (!rules_->raw) parser_.emplace(tokenizer, parser_options(*rules_));
}

bool Answer::spoke() const {
  return !parser_.has_value() || parser_->result().content.has_value();
}

Status Answer::push(int32_t id, std::vector<OutputEvent>& pieces) {
  if (over_) return {};
  if (rules_->score_only) {
    end(FinishReason::kLength);
    return {};
  }
  const bool is_stop = contains(rules_->stop_ids, id);
  const bool is_end = contains(rules_->end_ids, id);
  if (is_stop || (is_end && !rules_->ignore_end)) {
    ++tokens_;
    if (is_stop && !is_end) match_.id = id;
    finish(StopCause::kNatural, pieces);
    return {};
  }
  if (parser_.has_value()) {
    if (!is_end) {
      const Status read = parser_->push(id, events_);
      if (!read.ok()) return read;
    }
    ++tokens_;
    take(pieces);
    return {};
  }
  const Result<std::string> text = plain_.push(id);
  if (!text.ok()) return text.error();
  ++tokens_;
  content(*text, pieces);
  return {};
}

// Hands on what the parser found, with stop strings looked for in content.
void Answer::take(std::vector<OutputEvent>& pieces) {
  for (OutputEvent& event : events_) {
    if (over_) break;
    switch (event.kind) {
      case OutputEvent::Kind::kContent:
        content(event.text, pieces);
        break;
      case OutputEvent::Kind::kReasoning:
        release(pieces);
        if (!rules_->drop_reasoning) add_piece(event.kind, event.call, std::move(event.text), pieces);
        break;
      case OutputEvent::Kind::kDone:
        release(pieces);
        end(event.finish);
        break;
      case OutputEvent::Kind::kCallBegin:
      case OutputEvent::Kind::kArguments:
      case OutputEvent::Kind::kCallEnd:
        release(pieces);
        add_piece(event.kind, event.call, std::move(event.text), pieces);
        if (event.kind == OutputEvent::Kind::kCallEnd && rules_->one_call) end(FinishReason::kToolCalls);
        break;
    }
  }
  events_.clear();
}

void Answer::content(const std::string& text, std::vector<OutputEvent>& pieces) {
  if (text.empty()) return;
  std::string out;
  if (tokens_ <= rules_->min_tokens) {
    stops_.pass(text, out);
  } else if (const std::optional<size_t> found = stops_.push(text, rules_->include_stop, out); found.has_value()) {
    match_.text = rules_->stops->at(*found);
    end(FinishReason::kStop);
  }
  if (!out.empty()) add_piece(OutputEvent::Kind::kContent, -1, std::move(out), pieces);
}

void Answer::release(std::vector<OutputEvent>& pieces) {
  std::string out;
  stops_.flush(out);
  if (!out.empty()) add_piece(OutputEvent::Kind::kContent, -1, std::move(out), pieces);
}

void Answer::end(FinishReason reason) {
  over_ = true;
  reason_ = reason;
}

void Answer::finish(StopCause cause, std::vector<OutputEvent>& pieces) {
  if (over_) return;
  if (parser_.has_value()) {
    parser_->finish(cause, events_);
    take(pieces);
    return;
  }
  content(plain_.flush(), pieces);
  if (over_) return;
  release(pieces);
  end(cause == StopCause::kLength  ? FinishReason::kLength
      : cause == StopCause::kAbort ? FinishReason::kAbort
                                   : FinishReason::kStop);
}

}  // namespace perigee::serve
