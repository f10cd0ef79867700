#include "text/grammar_answer.h"

#include <algorithm>
#include <deque>
#include <limits>

#include "base/check.h"
#include "text/output_parser.h"
#include "text/xtml.h"

namespace perigee::text {

namespace {

enum class Phase { kPlain, kThink, kThought, kResponse, kSpoke, kTools, kCall, kValue, kCalled, kFree, kTail, kEnd };
enum class Marker { kNone, kOpen, kClose };

struct State {
  Phase phase = Phase::kEnd;
  Marker marker = Marker::kNone;
  bool spoke = false;               // text came in the response channel
  std::string header;               // since the marker
  std::vector<TextCursor> cursors;  // of the text here, or of the header; any of them may go on
  int calls = 0;                    // begun
  size_t tool = 0;                  // of CALL and VALUE
  std::vector<bool> used;           // arguments of the call
};

std::string call_header(const ToolRule& tool, int index) {
  return fmt::format("call tool=\"{}\" index=\"{}\"", xtml::escape_attribute(tool.name), index);
}

std::string argument_header(const ArgumentRule& argument, const ValueRule& value) {
  return fmt::format("argument key=\"{}\" type=\"{}\"", xtml::escape_attribute(argument.key), value.type);
}

class AnswerConstraint final : public Constraint {
 public:
  explicit AnswerConstraint(std::shared_ptr<const AnswerPlan> plan) : plan_(std::move(plan)) {
    if (plan_->plain) {
      now_.phase = Phase::kPlain;
      now_.cursors.emplace_back(*plan_->table, plan_->body);
    } else if (plan_->thinking) {
      now_.phase = Phase::kThink;
    } else {
      enter_response();
    }
  }

  bool fill_mask(std::span<uint32_t> mask) override;
  void accept(int32_t id) override;
  void rollback(int64_t tokens) override;
  std::unique_ptr<Constraint> clone() const override;

 private:
  // What accept() changed, enough to undo it.
  struct Step {
    State before;
    std::vector<std::shared_ptr<TextCursor::Matcher>> moved;
  };

  bool is_end(int32_t id) const {
    return std::find(plan_->end_ids.begin(), plan_->end_ids.end(), id) != plan_->end_ids.end();
  }
  // Whether cursors follow the text. Thoughts are free, the markers in them are not.
  bool is_watched() const {
    return now_.phase != Phase::kFree && (now_.phase != Phase::kThink || now_.marker != Marker::kNone);
  }
  bool text_complete() const {
    return std::any_of(now_.cursors.begin(), now_.cursors.end(), [](const TextCursor& c) { return c.complete(); });
  }
  bool required_are_there() const;
  bool has_free_argument() const;
  bool may_end() const;
  bool may_open() const;
  bool may_close() const;

  void enter(Phase phase);
  void enter_response();
  void enter_tools() { enter(plan_->tool_use == ToolUse::kRuled ? Phase::kTools : Phase::kFree); }
  void begin_marker(Marker marker);
  std::vector<std::string> open_headers() const;
  std::string close_header() const;
  void end_marker();
  void end_unwatched_marker(bool opens, const std::string& tag);
  void enter_call(const xtml::Header& header);
  void enter_value(const xtml::Header& header);
  void accept_text(int32_t id, Step& step);

  std::shared_ptr<const AnswerPlan> plan_;
  State now_;
  std::deque<Step> steps_;  // the latest kRollbackTokensMax
};

bool AnswerConstraint::required_are_there() const {
  const auto& arguments = plan_->tools[now_.tool].arguments;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].required && !now_.used[i]) return false;
  }
  return true;
}

bool AnswerConstraint::has_free_argument() const {
  return plan_->tools[now_.tool].other_header != nullptr ||
         std::find(now_.used.begin(), now_.used.end(), false) != now_.used.end();
}

bool AnswerConstraint::may_end() const {
  if (now_.phase == Phase::kPlain) return text_complete();
  return now_.phase == Phase::kTail || now_.phase == Phase::kEnd;
}

bool AnswerConstraint::may_open() const {
  switch (now_.phase) {
    case Phase::kThought:
      return true;
    case Phase::kSpoke:
      return plan_->tool_use != ToolUse::kNone;
    case Phase::kTools:
      return now_.calls < plan_->calls_max;
    case Phase::kCall:
      return has_free_argument();
    default:
      return false;
  }
}

bool AnswerConstraint::may_close() const {
  const bool bound = plan_->body->kind != TextRule::Kind::kAny;
  switch (now_.phase) {
    case Phase::kResponse:
      return text_complete() || (!now_.spoke && plan_->tool_use != ToolUse::kNone);
    case Phase::kSpoke:
      return now_.calls >= plan_->calls_min && (!bound || now_.spoke);
    case Phase::kTools:
      return now_.calls >= std::max(plan_->calls_min, 1);
    case Phase::kCall:
      return required_are_there();
    case Phase::kValue:
      return text_complete();
    case Phase::kCalled:
      return true;
    default:
      return false;
  }
}

bool AnswerConstraint::fill_mask(std::span<uint32_t> mask) {
  if (now_.phase == Phase::kFree) return false;
  std::fill(mask.begin(), mask.end(), is_watched() ? 0u : ~0u);
  const auto set = [&](int32_t id, bool allowed) {
    const auto at = static_cast<size_t>(id);
    if (id < 0 || at / 32 >= mask.size()) return;
    const uint32_t bit = 1u << (at % 32);
    mask[at / 32] = allowed ? mask[at / 32] | bit : mask[at / 32] & ~bit;
  };
  const auto allow = [&](int32_t id) { set(id, true); };
  if (!is_watched()) {  // a thought: only the end has to wait for the answer
    for (const int32_t id : plan_->end_ids) set(id, false);
    return true;
  }
  const auto allow_ends = [&] {
    for (const int32_t id : plan_->end_ids) allow(id);
  };
  for (const TextCursor& cursor : now_.cursors) cursor.add_mask(mask);
  if (now_.marker != Marker::kNone) {
    if (text_complete()) allow(plan_->sep);
  } else {
    if (may_end()) allow_ends();
    if (may_open()) allow(plan_->open);
    if (may_close()) allow(plan_->close);
  }
  // The grammar has no way on (its library failed): the answer ends rather than goes astray.
  if (std::all_of(mask.begin(), mask.end(), [](uint32_t word) { return word == 0; })) allow_ends();
  return true;
}

void AnswerConstraint::accept(int32_t id) {
  Step step{now_, {}};
  if (is_end(id)) {
    enter(Phase::kEnd);
  } else if (id == plan_->sep && now_.marker != Marker::kNone) {
    CHECK(!is_watched() || text_complete());
    end_marker();
  } else if (id == plan_->open || id == plan_->close) {
    const bool opens = id == plan_->open;
    CHECK(!is_watched() || (now_.marker == Marker::kNone && (opens ? may_open() : may_close())));
    begin_marker(opens ? Marker::kOpen : Marker::kClose);
  } else {
    accept_text(id, step);
  }
  steps_.push_back(std::move(step));
  if (static_cast<int64_t>(steps_.size()) > kRollbackTokensMax) steps_.pop_front();
}

void AnswerConstraint::accept_text(int32_t id, Step& step) {
  const bool is_ordinary = id >= 0 && id < plan_->table->size();
  if (now_.marker != Marker::kNone && is_ordinary) {
    now_.header += plan_->table->bytes(id);
    if (now_.header.size() > kHeaderBytesMax) now_.marker = Marker::kNone;  // plain text after all, as for the parser
  }
  if (!is_watched()) return;
  std::vector<TextCursor> alive;
  for (TextCursor& cursor : now_.cursors) {
    if (!cursor.accept(id)) continue;
    if (cursor.matcher() != nullptr) step.moved.push_back(cursor.matcher());
    alive.push_back(cursor);
  }
  CHECK(!alive.empty());
  now_.cursors = std::move(alive);
  if (now_.phase == Phase::kResponse && now_.marker == Marker::kNone) now_.spoke = true;
}

void AnswerConstraint::rollback(int64_t tokens) {
  CHECK_LE(tokens, static_cast<int64_t>(steps_.size()));
  for (; tokens > 0; --tokens) {
    for (const auto& matcher : steps_.back().moved) matcher->Rollback(1);
    now_ = std::move(steps_.back().before);
    steps_.pop_back();
  }
}

std::unique_ptr<Constraint> AnswerConstraint::clone() const {
  auto copy = std::make_unique<AnswerConstraint>(*this);
  std::map<const TextCursor::Matcher*, std::shared_ptr<TextCursor::Matcher>> forks;
  const auto fork = [&](State& state) {
    for (TextCursor& cursor : state.cursors) cursor.fork(forks);
  };
  fork(copy->now_);
  for (Step& step : copy->steps_) {
    fork(step.before);
    for (auto& matcher : step.moved) matcher = forks.at(matcher.get());
  }
  return copy;
}

void AnswerConstraint::enter(Phase phase) {
  now_.phase = phase;
  now_.marker = Marker::kNone;
  now_.header.clear();
  now_.cursors.clear();
}

void AnswerConstraint::enter_response() {
  enter(Phase::kResponse);
  now_.spoke = false;
  now_.cursors.emplace_back(*plan_->table, plan_->body);
}

void AnswerConstraint::begin_marker(Marker marker) {
  now_.marker = marker;
  now_.header.clear();
  now_.cursors.clear();
  if (!is_watched()) return;
  if (marker == Marker::kClose) {
    now_.cursors.emplace_back(*plan_->table, literals_rule({close_header()}));
    return;
  }
  std::vector<std::string> headers = open_headers();
  if (!headers.empty()) now_.cursors.emplace_back(*plan_->table, literals_rule(std::move(headers)));
  const bool others = now_.phase == Phase::kCall && plan_->tools[now_.tool].other_header != nullptr;
  if (others) now_.cursors.emplace_back(*plan_->table, plan_->tools[now_.tool].other_header);
}

std::vector<std::string> AnswerConstraint::open_headers() const {
  std::vector<std::string> headers;
  if (now_.phase == Phase::kThink) {
    headers = {"response"};
    if (plan_->tool_use != ToolUse::kNone) headers.push_back("tools");
    return headers;
  }
  if (now_.phase == Phase::kThought) return {"response"};
  if (now_.phase == Phase::kSpoke) return {"tools"};
  if (now_.phase == Phase::kTools) {
    for (const ToolRule& tool : plan_->tools) headers.push_back(call_header(tool, now_.calls + 1));
    return headers;
  }
  const auto& arguments = plan_->tools[now_.tool].arguments;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (now_.used[i]) continue;
    for (const ValueRule& value : arguments[i].values) headers.push_back(argument_header(arguments[i], value));
  }
  return headers;
}

std::string AnswerConstraint::close_header() const {
  switch (now_.phase) {
    case Phase::kThink:
      return "think";
    case Phase::kResponse:
      return "response";
    case Phase::kTools:
      return "tools";
    case Phase::kCall:
      return "call";
    case Phase::kValue:
      return "argument";
    default:
      return "message";
  }
}

void AnswerConstraint::end_marker() {
  const bool opens = now_.marker == Marker::kOpen;
  const xtml::Header header = xtml::parse_header(now_.header);
  switch (now_.phase) {
    case Phase::kThink:
    case Phase::kFree:
      return end_unwatched_marker(opens, header.tag);
    case Phase::kThought:
      return enter_response();
    case Phase::kResponse:
      return enter(Phase::kSpoke);
    case Phase::kSpoke:
      return opens ? enter_tools() : enter(Phase::kTail);
    case Phase::kTools:
      return opens ? enter_call(header) : enter(Phase::kCalled);
    case Phase::kCall:
      return opens ? enter_value(header) : enter(Phase::kTools);
    case Phase::kValue:
      return enter(Phase::kCall);
    default:
      return enter(Phase::kTail);
  }
}

// Where every token is allowed, the answer goes where the parser would take it.
void AnswerConstraint::end_unwatched_marker(bool opens, const std::string& tag) {
  const bool thinks = now_.phase == Phase::kThink;
  if (opens && tag == "response") return enter_response();
  if (opens && tag == "tools" && thinks) return enter_tools();
  if (!opens && tag == "think" && thinks) return enter(Phase::kThought);
  if (!opens && tag == "tools" && !thinks) return enter(Phase::kCalled);
  if (!opens && tag == "message" && !thinks) return enter(Phase::kTail);
  enter(now_.phase);
}

void AnswerConstraint::enter_call(const xtml::Header& header) {
  const std::string* name = header.find("tool");
  CHECK(name != nullptr);
  const auto tool =
      std::find_if(plan_->tools.begin(), plan_->tools.end(), [&](const ToolRule& rule) { return rule.name == *name; });
  CHECK(tool != plan_->tools.end());
  enter(Phase::kCall);
  now_.tool = static_cast<size_t>(tool - plan_->tools.begin());
  now_.used.assign(tool->arguments.size(), false);
  ++now_.calls;
}

void AnswerConstraint::enter_value(const xtml::Header& header) {
  const ToolRule& tool = plan_->tools[now_.tool];
  const std::string* key = header.find("key");
  const std::string* type = header.find("type");
  CHECK(key != nullptr && type != nullptr);
  const auto argument = std::find_if(tool.arguments.begin(), tool.arguments.end(),
                                     [&](const ArgumentRule& rule) { return rule.key == *key; });
  const bool declared = argument != tool.arguments.end();
  const std::vector<ValueRule>& values = declared ? argument->values : tool.other_values;
  const auto value =
      std::find_if(values.begin(), values.end(), [&](const ValueRule& rule) { return rule.type == *type; });
  CHECK(value != values.end());
  enter(Phase::kValue);
  if (declared) now_.used[static_cast<size_t>(argument - tool.arguments.begin())] = true;
  now_.cursors.emplace_back(*plan_->table, value->text);
}

}  // namespace

std::shared_ptr<Constraint> make_constraint(std::shared_ptr<const AnswerPlan> plan) {
  return std::make_shared<AnswerConstraint>(std::move(plan));
}

}  // namespace perigee::text
