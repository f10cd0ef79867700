#include "bench/cpu/serve_stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>

namespace perigee::bench {
namespace {

using nlohmann::json;

constexpr size_t kShownBytes = 200;  // of an answer, in a fault
constexpr uint64_t kFnvOffset = 14695981039346656037u;  // FNV-1a, 64 bits
constexpr uint64_t kFnvPrime = 1099511628211u;

std::string shown(std::string_view text) { return std::string(text.substr(0, kShownBytes)); }

const json& member(const json& object, const char* key) {
  static const json nothing;
  if (!object.is_object()) return nothing;
  const auto found = object.find(key);
  return found == object.end() ? nothing : *found;
}

}  // namespace

void AnswerReader::expect(int64_t tokens) {
  *this = {};
  state_ = State::kHead;
  tokens_ = tokens;
  digest_ = kFnvOffset;
}

void AnswerReader::fail(std::string why) {
  if (fault_.empty()) fault_ = std::move(why);
}

bool AnswerReader::feed(std::string_view bytes, Clock::time_point now) {
  now_ = now;
  buffer_ += bytes;
  size_t used = 0;
  while (state_ != State::kDone && fault_.empty()) {
    const size_t n = step(std::string_view(buffer_).substr(used));
    if (n == 0) break;
    used += n;
  }
  buffer_.erase(0, used);
  if (state_ == State::kDone && !buffer_.empty()) fail("bytes came after the end of an answer: " + shown(buffer_));
  return fault_.empty();
}

// How many bytes were used; 0: more are needed.
size_t AnswerReader::step(std::string_view rest) {
  switch (state_) {
    case State::kHead: return read_head(rest);
    case State::kChunkLine: return read_chunk_line(rest);
    case State::kChunkEnd: return read_line_end(rest, State::kChunkLine);
    case State::kLastLine: return read_line_end(rest, State::kDone);
    case State::kChunkData:
    case State::kBody: {
      const size_t n = std::min(left_, rest.size());
      if (state_ == State::kChunkData) take_body(rest.substr(0, n));
      left_ -= n;
      if (left_ == 0) state_ = state_ == State::kBody ? State::kDone : State::kChunkEnd;
      return n;
    }
    case State::kDone: return 0;
  }
  return 0;
}

size_t AnswerReader::read_head(std::string_view rest) {
  const size_t end = rest.find("\r\n\r\n");
  if (end == std::string_view::npos) return 0;
  const std::string_view head = rest.substr(0, end + 2);
  if (!head.starts_with("HTTP/1.1 200 ")) {
    fail("the answer is no 200: " + shown(head.substr(0, head.find('\r'))) + " ... " + shown(rest.substr(end + 4)));
  } else if (tokens_ > 0) {
    const auto has = [&](const char* line) { return head.find(line) != std::string_view::npos; };
    if (!has("\r\nTransfer-Encoding: chunked\r\n") || !has("\r\nContent-Type: text/event-stream"))
      fail("the answer is no stream of events: " + shown(head));
    state_ = State::kChunkLine;
  } else {
    constexpr std::string_view kLength = "\r\nContent-Length: ";
    const size_t at = head.find(kLength);
    if (at == std::string_view::npos) fail("the answer has no Content-Length: " + shown(head));
    else std::from_chars(head.data() + at + kLength.size(), head.data() + head.size(), left_);
    state_ = left_ == 0 ? State::kDone : State::kBody;
  }
  return end + 4;
}

size_t AnswerReader::read_chunk_line(std::string_view rest) {
  const size_t end = rest.find("\r\n");
  if (end == std::string_view::npos) return 0;
  const auto [stop, code] = std::from_chars(rest.data(), rest.data() + end, left_, 16);
  if (code != std::errc() || stop != rest.data() + end) fail("a chunk's length is malformed: " + shown(rest.substr(0, end)));
  state_ = State::kChunkData;
  if (left_ == 0) {
    state_ = State::kLastLine;
    if (!events_.empty()) fail("the last event is cut: " + shown(events_));
    else if (!done_seen_) fail("the stream ended without [DONE]");
  }
  return end + 2;
}

size_t AnswerReader::read_line_end(std::string_view rest, State next) {
  if (rest.size() < 2) return 0;
  if (!rest.starts_with("\r\n")) fail("a chunk is longer than its length says: " + shown(rest));
  state_ = next;
  return 2;
}

void AnswerReader::take_body(std::string_view bytes) {
  events_ += bytes;
  size_t from = 0;
  for (size_t end = events_.find("\n\n"); end != std::string::npos && fault_.empty(); end = events_.find("\n\n", from)) {
    take_event(std::string_view(events_).substr(from, end - from));
    from = end + 2;
  }
  events_.erase(0, from);
}

void AnswerReader::take_event(std::string_view event) {
  constexpr std::string_view kData = "data: ";
  if (done_seen_) return fail("an event came after [DONE]: " + shown(event));
  if (!event.starts_with(kData)) return fail("an event does not begin with 'data: ': " + shown(event));
  event.remove_prefix(kData.size());
  if (event == "[DONE]") {
    if (!finish_seen_ || !usage_seen_) return fail("[DONE] came before the finish reason and the usage");
    done_seen_ = true;
    return;
  }
  const json chunk = json::parse(event, nullptr, false);
  const json& choices = member(chunk, "choices");
  if (!choices.is_array()) return fail("an event is no chunk: " + shown(event));
  choices.empty() ? take_usage(member(chunk, "usage")) : take_choice(choices.front());
}

void AnswerReader::take_choice(const json& choice) {
  if (finish_seen_) return fail("a chunk came after the finish reason");
  const json& delta = member(choice, "delta");
  for (const json* text : {&member(choice, "text"), &member(delta, "reasoning"), &member(delta, "content")}) {
    if (text->is_string() && !text->get_ref<const std::string&>().empty()) take_text(text->get_ref<const std::string&>());
  }
  const json& reason = member(choice, "finish_reason");
  if (reason.is_null()) return;
  finish_seen_ = true;
  if (reason != "length") fail("the stream ended for another reason than its length: " + reason.dump());
}

void AnswerReader::take_usage(const json& usage) {
  const json& made = member(usage, "completion_tokens");
  if (made != tokens_) return fail(fmt::format("the usage tells of {} tokens instead of {}", made.dump(), tokens_));
  usage_seen_ = true;
}

void AnswerReader::take_text(std::string_view text) {
  times_.push_back(now_);
  for (const char c : text) digest_ = (digest_ ^ static_cast<uint8_t>(c)) * kFnvPrime;
}

}  // namespace perigee::bench
