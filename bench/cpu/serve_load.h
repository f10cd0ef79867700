// What    The client side of a load on an HTTP server: many streams at once on connections that are kept, and idle connections.
// Owner   bench.
// Threads One thread, which waits with epoll; nothing here starts another.
// Errors  What cannot be opened is a Status; a broken, wrong or silent stream is counted, and the first one described.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "bench/cpu/serve_stream.h"

namespace perigee::bench {

struct LoadRequest {
  std::string bytes;    // head and body
  int64_t tokens = 0;   // that the stream must have
};

struct RoundFigures {
  int64_t streams = 0;
  int64_t faults = 0;  // broken off, or not what was asked for
  int64_t stuck = 0;   // not over when nothing at all had come for `silence_max_s`
  std::string first_fault;
  int64_t tokens = 0;  // of whole streams
  int64_t pieces = 0;  // chunks that carried text
  int64_t at_once = 0;  // most streams that were between their first and their last text at one time
  double seconds = 0;  // first request sent to last stream ended
  double client_cpu_s = 0;
  std::vector<double> first_s;  // of each whole stream: its request sent to its first text
  std::vector<double> gaps_s;   // between two pieces of one stream
  std::vector<uint64_t> digests;  // of each stream's text; 0 if it was not whole
};

class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  Socket& operator=(Socket&& other) noexcept;
  ~Socket();
  int fd() const { return fd_; }

 private:
  int fd_ = -1;
};

class StreamLoad {
 public:
  static Result<std::unique_ptr<StreamLoad>> connect(int port, size_t connections);
  ~StreamLoad();

  // One request on each connection, all sent before the first answer is read.
  RoundFigures run(const std::vector<LoadRequest>& requests, double silence_max_s);

 private:
  StreamLoad() = default;
  void send_all(const std::vector<LoadRequest>& requests, RoundFigures& out);
  void read(size_t stream, RoundFigures& out);
  void end(size_t stream, RoundFigures& out);
  int64_t most_at_once() const;

  Socket epoll_;
  std::vector<Socket> sockets_;
  std::vector<AnswerReader> readers_;
  std::vector<AnswerReader::Clock::time_point> sent_;
  std::vector<bool> open_;
  size_t left_ = 0;
  std::vector<char> scratch_ = std::vector<char>(65536);
};

// Connections that ask for GET `path` once when they are opened, and again whenever they are to show that they live.
class IdleConnections {
 public:
  explicit IdleConnections(std::string path) : path_(std::move(path)) {}
  Status open(int port, size_t connections);
  Status ask_all();
  size_t count() const { return sockets_.size(); }

 private:
  std::string path_;
  std::vector<Socket> sockets_;
};

// The value that a share of `values` does not exceed; 0 of none.
double quantile(std::vector<double> values, double share);
double process_cpu_s();

}  // namespace perigee::bench
