#include "text/output_parser.h"

#include <algorithm>
#include <array>

#include "text/json.h"

namespace perigee::text {

namespace {

constexpr JsonStyle kAsWritten{.item_separator = ",", .key_separator = ":", .number_lexemes = true};

bool is_format_tag(std::string_view tag) {
  static constexpr std::array<std::string_view, 7> kTags = {
      "think", "response", "tools", "call", "argument", "json", "message"};
  return std::find(kTags.begin(), kTags.end(), tag) != kTags.end();
}

std::string json_string(std::string_view text) {
  return print_json(Json::string(std::string(text)));
}

// The tool wrote a value that should be JSON; the client must get JSON in any case.
std::string as_json(std::string_view bytes, bool must_be_object) {
  const std::string text = replace_invalid_utf8(bytes);
  const Result<Json> value = parse_json(text, "value");
  if (!value.ok() || (must_be_object && !value->is_object())) return json_string(text);
  return print_json(*value, kAsWritten);
}

}  // namespace

const char* finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kToolCalls:
      return "tool_calls";
    case FinishReason::kAbort:
      return "abort";
  }
  return "";
}

OutputParser::OutputParser(const Tokenizer& tokenizer, Options options)
    : tokenizer_(&tokenizer),
      options_(std::move(options)),
      open_id_(tokenizer.special_id(xtml::kOpen).value_or(-1)),
      close_id_(tokenizer.special_id(xtml::kClose).value_or(-1)),
      sep_id_(tokenizer.special_id(xtml::kSep).value_or(-1)),
      state_(options_.thinking ? State::kThink : State::kResponse),
      spoke_(!options_.thinking) {
  const std::optional<int32_t> end = tokenizer.special_id(xtml::kEndOfMessage);
  if (end.has_value()) options_.stop_ids.push_back(*end);
}

Status OutputParser::push(int32_t id, std::vector<OutputEvent>& events) {
  if (done_) return {};
  const Result<std::string_view> bytes = tokenizer_->token_bytes(id);
  if (!bytes.ok()) return bytes.error();
  if (std::find(options_.stop_ids.begin(), options_.stop_ids.end(), id) !=
      options_.stop_ids.end()) {
    finish(StopCause::kNatural, events);
    return {};
  }
  events_ = &events;
  reasoning_tokens_ += state_ == State::kThink;
  if (id == open_id_) {
    begin_marker(Marker::kOpen);
  } else if (id == close_id_) {
    begin_marker(Marker::kClose);
  } else if (id == sep_id_ && marker_ != Marker::kNone) {
    end_marker();
  } else if (tokenizer_->is_hidden(id)) {
    // Not text, and no part of the format.
  } else if (marker_ == Marker::kNone) {
    add_text(*bytes);
  } else {
    header_ += *bytes;
    if (header_.size() > kHeaderBytesMax) marker_is_text(false);
  }
  return {};
}

void OutputParser::finish(StopCause cause, std::vector<OutputEvent>& events) {
  if (done_) return;
  events_ = &events;
  if (state_ == State::kThink || state_ == State::kResponse) put_text(utf8_.flush());
  done_ = true;
  if (cause == StopCause::kLength) {
    result_.finish_reason = FinishReason::kLength;
  } else if (cause == StopCause::kAbort) {
    result_.finish_reason = FinishReason::kAbort;
  } else if (!result_.tool_calls.empty()) {
    result_.finish_reason = FinishReason::kToolCalls;
  }
  if (!result_.content.has_value() && spoke_ && result_.tool_calls.empty()) result_.content = "";
  OutputEvent& event = events.emplace_back();
  event.kind = OutputEvent::Kind::kDone;
  event.finish = result_.finish_reason;
}

void OutputParser::begin_marker(Marker marker) {
  if (marker_ != Marker::kNone) marker_is_text(false);
  marker_ = marker;
}

void OutputParser::end_marker() {
  const xtml::Header header = xtml::parse_header(replace_invalid_utf8(header_));
  const bool is_bare = header_.size() == header.tag.size();  // closing markers have no attributes
  const bool is_known =
      marker_ == Marker::kOpen ? on_open(header) : is_bare && on_close(header.tag);
  if (!is_known) return marker_is_text(true);
  marker_ = Marker::kNone;
  header_.clear();
}

// The marker turns out to be no part of the format: it is text of the channel.
void OutputParser::marker_is_text(bool with_sep) {
  std::string text(marker_ == Marker::kOpen ? xtml::kOpen : xtml::kClose);
  text += header_;
  if (with_sep) text += xtml::kSep;
  marker_ = Marker::kNone;
  header_.clear();
  add_text(text);
}

// True if the marker was understood (perhaps by dropping it), false if it is text.
bool OutputParser::on_open(const xtml::Header& header) {
  if (state_ == State::kValue || state_ == State::kJson) return false;
  if (state_ == State::kTail) return true;
  const std::string& tag = header.tag;
  if (state_ == State::kCall && (tag == "argument" || tag == "json")) {
    tag == "json" ? begin_json() : begin_value(header);
  } else if (tag == "call") {
    begin_call(header);
  } else if (tag == "think") {
    enter(State::kThink);
  } else if (tag == "response") {
    enter(State::kResponse);
  } else if (tag == "tools") {
    enter(State::kTools);
  }
  return is_format_tag(tag);
}

bool OutputParser::on_close(std::string_view tag) {
  if (state_ == State::kCall || state_ == State::kValue || state_ == State::kJson)
    return close_in_call(tag);
  if (tag == "message") {
    enter(State::kTail);
  } else if (tag == "response" && (state_ == State::kResponse || state_ == State::kThink)) {
    enter(State::kBetween);
  } else if ((tag == "think" && state_ == State::kThink) ||
             (tag == "tools" && state_ == State::kTools)) {
    enter(State::kBetween);
  }
  return is_format_tag(tag);
}

bool OutputParser::close_in_call(std::string_view tag) {
  if (tag == "argument" && state_ == State::kValue) {
    end_value();
  } else if (tag == "json" && state_ == State::kJson) {
    end_json();
  } else if (tag == "call") {
    if (state_ == State::kCall) end_call();
    enter(State::kTools);
  } else if (tag == "tools") {
    enter(State::kBetween);
  } else if (tag == "message") {
    enter(State::kTail);
  } else {
    return state_ == State::kCall;
  }
  return true;
}

void OutputParser::enter(State state) {
  if (state_ == state) return;
  if (state_ == State::kThink || state_ == State::kResponse) put_text(utf8_.flush());
  utf8_ = {};  // half a character of an abandoned value
  state_ = state;
  spoke_ = spoke_ || state == State::kResponse;
}

void OutputParser::add_text(std::string_view bytes) {
  switch (state_) {
    case State::kThink:
    case State::kResponse:
      return put_text(utf8_.push(bytes));
    case State::kValue:
      if (!value_.is_string) {
        value_.buffer += bytes;
      } else {
        put_text(utf8_.push(bytes));
      }
      return;
    case State::kJson:
      value_.buffer += bytes;
      return;
    case State::kBetween:
    case State::kTools:
    case State::kCall:
    case State::kTail:
      return;
  }
}

// Whole characters of a channel or of a string value.
void OutputParser::put_text(const std::string& text) {
  if (text.empty()) return;
  if (state_ == State::kThink) {
    result_.reasoning += text;
    emit(OutputEvent::Kind::kReasoning, text);
  } else if (state_ == State::kResponse) {
    if (!result_.content.has_value()) result_.content.emplace();
    *result_.content += text;
    emit(OutputEvent::Kind::kContent, text);
  } else if (!value_.dropped) {
    std::string escaped;
    append_json_escaped(text, escaped);
    add_arguments(escaped);
  }
}

void OutputParser::begin_call(const xtml::Header& header) {
  enter(State::kCall);
  const std::string* name = header.find("tool");
  call_ = {};
  call_.dropped = options_.drop_calls || name == nullptr || name->empty();
  if (call_.dropped) return;
  call_.name = *name;
  call_.index = calls_begun_++;
  emit(OutputEvent::Kind::kCallBegin, call_.name, call_.index);
}

void OutputParser::end_call() {
  if (call_.dropped) return;
  if (!call_.has_json) add_arguments(call_.keys.empty() ? "{}" : "}");
  emit(OutputEvent::Kind::kCallEnd, "", call_.index);
  result_.tool_calls.push_back({call_.index, std::move(call_.name), std::move(call_.arguments)});
}

void OutputParser::begin_value(const xtml::Header& header) {
  const std::string* key = header.find("key");
  const std::string* type = header.find("type");
  const bool is_first = call_.keys.empty();
  value_ = {};
  value_.is_string = type == nullptr || *type == "string";
  value_.dropped =
      call_.dropped || call_.has_json || key == nullptr || !call_.keys.insert(*key).second;
  enter(State::kValue);
  if (value_.dropped) return;
  std::string prefix = is_first ? "{" : ",";
  prefix += json_string(*key);
  prefix += value_.is_string ? ":\"" : ":";
  add_arguments(prefix);
}

void OutputParser::end_value() {
  if (value_.is_string) {
    put_text(utf8_.flush());
    if (!value_.dropped) add_arguments("\"");
  } else if (!value_.dropped) {
    add_arguments(as_json(value_.buffer, false));
  }
  enter(State::kCall);
}

void OutputParser::begin_json() {
  value_ = {};
  value_.dropped = call_.dropped || call_.has_json || !call_.keys.empty();
  enter(State::kJson);
}

void OutputParser::end_json() {
  if (!value_.dropped) {
    add_arguments(as_json(value_.buffer, true));
    call_.has_json = true;
  }
  enter(State::kCall);
}

void OutputParser::add_arguments(const std::string& text) {
  call_.arguments += text;
  emit(OutputEvent::Kind::kArguments, text, call_.index);
}

void OutputParser::emit(OutputEvent::Kind kind, const std::string& text, int call) {
  OutputEvent& event = events_->emplace_back();
  event.kind = kind;
  event.call = call;
  event.text = text;
}

Result<ParsedOutput> parse_output(const Tokenizer& tokenizer, const OutputParser::Options& options,
                                  std::span<const int32_t> ids, StopCause cause) {
  OutputParser parser(tokenizer, options);
  std::vector<OutputEvent> events;
  for (const int32_t id : ids) {
    const Status pushed = parser.push(id, events);
    if (!pushed.ok()) return pushed.error();
    events.clear();
  }
  parser.finish(cause, events);
  return parser.result();
}

}  // namespace perigee::text
