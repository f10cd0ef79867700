// What    Reads the answers that come over one HTTP connection, and checks a stream of events down to its last byte.
// Owner   bench.
// Threads One reader, one thread.
// Errors  feed() is false from the first fault on, and fault() says in one sentence what is wrong.
#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace perigee::bench {

class AnswerReader {
 public:
  using Clock = std::chrono::steady_clock;

  // What comes next must be a stream of one choice with `tokens` tokens; 0: a whole answer with a length.
  void expect(int64_t tokens);
  bool feed(std::string_view bytes, Clock::time_point now);

  bool done() const { return state_ == State::kDone; }  // whole, and nothing came after it
  const std::string& fault() const { return fault_; }
  int64_t tokens() const { return tokens_; }
  // Of the chunks that carry text. Several that came with one read have one time.
  int64_t pieces() const { return static_cast<int64_t>(times_.size()); }
  const std::vector<Clock::time_point>& times() const { return times_; }
  uint64_t digest() const { return digest_; }  // of all text, however it was cut

 private:
  enum class State { kHead, kChunkLine, kChunkData, kChunkEnd, kLastLine, kBody, kDone };
  size_t step(std::string_view rest);
  size_t read_head(std::string_view rest);
  size_t read_chunk_line(std::string_view rest);
  size_t read_line_end(std::string_view rest, State next);
  void take_body(std::string_view bytes);
  void take_event(std::string_view event);
  void take_choice(const nlohmann::json& choice);
  void take_usage(const nlohmann::json& usage);
  void take_text(std::string_view text);
  void fail(std::string why);

  State state_ = State::kDone;
  int64_t tokens_ = 0;
  size_t left_ = 0;  // of a chunk or a body
  std::string buffer_;
  std::string events_;  // the body as far as no whole event
  std::string fault_;
  bool finish_seen_ = false;
  bool usage_seen_ = false;
  bool done_seen_ = false;
  uint64_t digest_ = 0;
  Clock::time_point now_{};
  std::vector<Clock::time_point> times_;
};

}  // namespace perigee::bench
