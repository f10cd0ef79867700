#include "bench/cpu/serve_load.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <ctime>

#include "base/check.h"

namespace perigee::bench {
namespace {

using Clock = AnswerReader::Clock;

constexpr size_t kEventsMax = 512;  // of one wait
constexpr int kWaitMs = 200;
constexpr int kPatience_s = 30;

double seconds(Clock::duration span) { return std::chrono::duration<double>(span).count(); }

Result<Socket> connect_to(int port) {
  Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (socket.fd() < 0) return resource_exhausted("a socket cannot be made: {}", std::strerror(errno));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return io_error("port {} takes no connection: {}", port, std::strerror(errno));
  const int on = 1;
  ::setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  const timeval patience{kPatience_s, 0};  // where a read waits at all
  ::setsockopt(socket.fd(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  return socket;
}

bool send_whole(int fd, const std::string& bytes) {
  return ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
}

}  // namespace

Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

Socket::~Socket() {
  if (fd_ >= 0) ::close(fd_);
}

double quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  const auto last = static_cast<double>(values.size() - 1);
  const auto at = values.begin() + static_cast<ptrdiff_t>(std::ceil(share * last));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

double process_cpu_s() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

StreamLoad::~StreamLoad() = default;

Result<std::unique_ptr<StreamLoad>> StreamLoad::connect(int port, size_t connections) {
  std::unique_ptr<StreamLoad> load(new StreamLoad);
  load->epoll_ = Socket(epoll_create1(EPOLL_CLOEXEC));
  CHECK_GE(load->epoll_.fd(), 0);
  for (size_t i = 0; i < connections; ++i) {
    Result<Socket> socket = connect_to(port);
    if (!socket.ok()) return socket.error();
    ::fcntl(socket->fd(), F_SETFL, O_NONBLOCK);
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = i;
    CHECK_EQ(epoll_ctl(load->epoll_.fd(), EPOLL_CTL_ADD, socket->fd(), &event), 0);
    load->sockets_.push_back(std::move(*socket));
  }
  load->readers_.resize(connections);
  load->sent_.resize(connections);
  load->open_.resize(connections);
  return load;
}

void StreamLoad::send_all(const std::vector<LoadRequest>& requests, RoundFigures& out) {
  for (size_t i = 0; i < requests.size(); ++i) {
    readers_[i].expect(requests[i].tokens);
    sent_[i] = Clock::now();
    open_[i] = true;
    ++left_;
    if (send_whole(sockets_[i].fd(), requests[i].bytes)) continue;
    if (out.faults == 0) out.first_fault = "a request could not be sent in one piece";
    end(i, out);
  }
}

void StreamLoad::end(size_t stream, RoundFigures& out) {
  open_[stream] = false;
  --left_;
  const AnswerReader& reader = readers_[stream];
  if (!reader.done() || !reader.fault().empty()) {
    ++out.faults;
    return;
  }
  out.tokens += reader.tokens();
  out.pieces += reader.pieces();
  out.digests[stream] = reader.digest();
  const auto& times = reader.times();
  if (!times.empty()) out.first_s.push_back(seconds(times.front() - sent_[stream]));
  for (size_t i = 1; i < times.size(); ++i) out.gaps_s.push_back(seconds(times[i] - times[i - 1]));
}

void StreamLoad::read(size_t stream, RoundFigures& out) {
  const ssize_t n = ::recv(sockets_[stream].fd(), scratch_.data(), scratch_.size(), 0);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  AnswerReader& reader = readers_[stream];
  std::string fault;
  if (n <= 0) {
    fault = "a connection ended before its answer";
    epoll_ctl(epoll_.fd(), EPOLL_CTL_DEL, sockets_[stream].fd(), nullptr);
  } else if (!open_[stream]) {
    fault = "bytes came on a connection that had no request";
  } else if (!reader.feed({scratch_.data(), static_cast<size_t>(n)}, Clock::now())) {
    fault = reader.fault();
  }
  if (!fault.empty() && out.first_fault.empty()) out.first_fault = fault;
  if (!open_[stream]) {
    ++out.faults;
  } else if (!fault.empty() || reader.done()) {
    end(stream, out);
  }
}

int64_t StreamLoad::most_at_once() const {
  std::vector<std::pair<Clock::time_point, int>> changes;
  for (const AnswerReader& reader : readers_) {
    if (!reader.done() || reader.times().empty()) continue;
    changes.emplace_back(reader.times().front(), 1);
    changes.emplace_back(reader.times().back(), -1);
  }
  std::sort(changes.begin(), changes.end());  // of one time, ends first
  int64_t now = 0;
  int64_t most = 0;
  for (const auto& [time, change] : changes) most = std::max(most, now += change);
  return most;
}

RoundFigures StreamLoad::run(const std::vector<LoadRequest>& requests, double silence_max_s) {
  CHECK_LE(requests.size(), sockets_.size());
  RoundFigures out;
  out.streams = static_cast<int64_t>(requests.size());
  out.digests.resize(requests.size());
  left_ = 0;
  const double cpu = process_cpu_s();
  const auto start = Clock::now();
  auto heard = start;
  send_all(requests, out);
  std::array<epoll_event, kEventsMax> events{};
  while (left_ > 0 && seconds(Clock::now() - heard) < silence_max_s) {
    const int n = epoll_wait(epoll_.fd(), events.data(), static_cast<int>(events.size()), kWaitMs);
    for (int i = 0; i < n; ++i) read(events[static_cast<size_t>(i)].data.u64, out);
    if (n > 0) heard = Clock::now();
  }
  out.seconds = seconds(heard - start);
  out.client_cpu_s = process_cpu_s() - cpu;
  out.stuck = static_cast<int64_t>(left_);
  out.at_once = most_at_once();
  std::fill(open_.begin(), open_.end(), false);
  return out;
}

Status IdleConnections::open(int port, size_t connections) {
  for (size_t i = 0; i < connections; ++i) {
    Result<Socket> socket = connect_to(port);
    if (!socket.ok()) return socket.error();
    sockets_.push_back(std::move(*socket));
  }
  return ask_all();
}

Status IdleConnections::ask_all() {
  const std::string request = "GET " + path_ + " HTTP/1.1\r\nHost: bench\r\n\r\n";
  std::array<char, 4096> bytes{};
  AnswerReader reader;
  for (size_t i = 0; i < sockets_.size(); ++i) {
    if (!send_whole(sockets_[i].fd(), request)) return io_error("idle connection {} is closed", i);
    reader.expect(0);
    while (!reader.done()) {
      const ssize_t n = ::recv(sockets_[i].fd(), bytes.data(), bytes.size(), 0);
      if (n <= 0) return io_error("idle connection {} ended without an answer", i);
      if (!reader.feed({bytes.data(), static_cast<size_t>(n)}, Clock::now()))
        return io_error("idle connection {}: {}", i, reader.fault());
    }
  }
  return {};
}

}  // namespace perigee::bench
