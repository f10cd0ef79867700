// The HTTP server under load, on two cores: many streams of events fed by a scripted producer, and many idle connections. The client
// is a process of its own, so that the server's CPU time and memory are the server's alone.
//   perigee_bench_http [--streams 2000] [--idle 10000] [--tokens 100]
#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "serve/server.h"

namespace perigee {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kEvent =
    R"(data: {"id":"chatcmpl-0123456789abcdef0123456789abcdef","object":"chat.completion.chunk","created":1700000000,)"
    R"("model":"m","choices":[{"index":0,"delta":{"content":" token"},"finish_reason":null}]})"
    "\n\n";

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double resident_mib() {
  std::ifstream file("/proc/self/statm");
  size_t pages = 0;
  size_t resident = 0;
  file >> pages >> resident;
  return static_cast<double>(resident) * static_cast<double>(sysconf(_SC_PAGESIZE)) / (1 << 20);
}

// ---- The client: its own process. Exit status 0: every stream was whole. ----

int connect_to(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  CHECK_GE(fd, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  CHECK_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  return fd;
}

void send_get(int fd, const char* path) {
  const std::string text = fmt::format("GET {} HTTP/1.1\r\nHost: x\r\n\r\n", path);
  CHECK_EQ(send(fd, text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
}

// Counts events and sees the last chunk, wherever the bytes were cut.
struct StreamReader {
  void take(std::string_view bytes) {
    for (const char c : bytes) {
      matched = c == '}' ? 1 : (c == '\n' && matched > 0) ? matched + 1 : 0;
      if (matched == 3) ++events;
      if (matched == 3) matched = 0;
    }
    tail += bytes;
    ended = tail.ends_with("\r\n0\r\n\r\n");
    if (tail.size() > 7) tail.erase(0, tail.size() - 7);
  }
  int matched = 0;  // of "}\n\n"
  int events = 0;
  bool ended = false;
  std::string tail;
};

int stream_client(int port, int streams, int tokens) {
  const int poll = epoll_create1(0);
  std::vector<int> fds;
  for (int i = 0; i < streams; ++i) {
    const int fd = connect_to(port);
    epoll_event event{EPOLLIN, {}};
    event.data.u32 = static_cast<uint32_t>(i);
    epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event);
    fds.push_back(fd);
    send_get(fd, "/stream");
  }
  std::vector<StreamReader> readers(fds.size());
  int open = streams;
  int whole = 0;
  std::vector<epoll_event> ready(512);
  std::vector<char> buffer(65536);
  while (open > 0) {
    const int n = epoll_wait(poll, ready.data(), static_cast<int>(ready.size()), 60000);
    if (n <= 0) break;
    for (int i = 0; i < n; ++i) {
      const size_t at = ready[static_cast<size_t>(i)].data.u32;
      const ssize_t got = recv(fds[at], buffer.data(), buffer.size(), 0);
      if (got > 0) readers[at].take({buffer.data(), static_cast<size_t>(got)});
      if (readers[at].ended && readers[at].events == tokens) ++whole;
      if (readers[at].ended || got <= 0) {
        --open;
        close(fds[at]);
      }
    }
  }
  return whole == streams ? 0 : 1;
}

int idle_client(int port, int connections, int ready_pipe, int go_pipe) {
  std::vector<int> fds;
  std::vector<char> buffer(4096);
  int good = 0;
  const auto ask = [&](int fd) {
    send_get(fd, "/hello");
    const ssize_t got = recv(fd, buffer.data(), buffer.size(), 0);
    if (got > 0 && std::string_view(buffer.data(), static_cast<size_t>(got)).ends_with("hello")) ++good;
  };
  for (int i = 0; i < connections; ++i) fds.push_back(connect_to(port));
  for (const int fd : fds) ask(fd);
  char byte = 0;
  CHECK_EQ(write(ready_pipe, &byte, 1), 1);
  CHECK_EQ(read(go_pipe, &byte, 1), 1);
  for (const int fd : fds) ask(fd);
  return good == 2 * connections ? 0 : 1;
}

// ---- The server and its producer. ----

class Producer {
 public:
  void add(const std::shared_ptr<serve::Reply>& reply) {
    reply->begin(200, "text/event-stream", {});
    std::lock_guard lock(mutex_);
    replies_.push_back(reply);
  }
  // Waits for all streams, then gives one token to each per step.
  void run(size_t streams, int tokens, std::chrono::milliseconds step) {
    while (true) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      std::lock_guard lock(mutex_);
      if (replies_.size() == streams) break;
    }
    auto next = Clock::now();
    for (int i = 0; i < tokens; ++i) {
      for (const auto& reply : replies_) reply->write(kEvent);
      if (i == tokens / 2) memory_mid_mib = resident_mib();
      next += step;
      std::this_thread::sleep_until(next);
    }
    memory_end_mib = resident_mib();
    for (const auto& reply : replies_) reply->end();
    replies_.clear();
  }
  double memory_mid_mib = 0;
  double memory_end_mib = 0;

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<serve::Reply>> replies_;
};

std::unique_ptr<serve::Server> start_server(Producer& producer, const std::shared_ptr<serve::ServerState>& state) {
  serve::ServerOptions options;
  options.port = 0;
  options.access_log = false;
  options.state = state;
  options.log = [](serve::LogLevel, const std::string& line) { fmt::print("{}\n", line); };
  std::vector<serve::Route> routes;
  routes.push_back({"GET", "/stream", [&](const serve::HttpRequest&, const auto& reply) { producer.add(reply); },
                    serve::Access::kKey, serve::Where::kInline});
  routes.push_back({"GET", "/hello", [](const serve::HttpRequest&, const auto& reply) { reply->send(200, "text/plain", "hello", {}); },
                    serve::Access::kKey, serve::Where::kInline});
  auto server = serve::Server::create(std::move(options), std::move(routes));
  CHECK(server.ok());
  return std::move(*server);
}

bool bench_streams(int streams, int tokens, std::chrono::milliseconds step) {
  Producer producer;
  auto state = std::make_shared<serve::ServerState>();
  auto server = start_server(producer, state);
  const int port = server->port();
  const pid_t client = fork();  // before there are threads
  if (client == 0) _exit(stream_client(port, streams, tokens));
  const double memory = resident_mib();
  server->start();
  const auto start = Clock::now();
  const double cpu = cpu_seconds();
  producer.run(static_cast<size_t>(streams), tokens, step);
  int status = 0;
  CHECK_EQ(waitpid(client, &status, 0), client);
  const double used = cpu_seconds() - cpu;
  const bool good = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  fmt::print("{} streams of {} tokens, one each {} ms: {}; {:.2f} s, server CPU {:.2f} s = {:.2f} us per token; "
             "memory {:.1f} MiB before, {:.1f} in the middle, {:.1f} at the end; cut {}, left {}\n",
             streams, tokens, step.count(), good ? "all whole" : "ERRORS", seconds_since(start), used,
             used * 1e6 / (static_cast<double>(streams) * tokens), memory, producer.memory_mid_mib, producer.memory_end_mib,
             state->readers_cut.load(), state->disconnects.load());
  return good;
}

bool bench_idle(int connections) {
  Producer producer;
  auto state = std::make_shared<serve::ServerState>();
  auto server = start_server(producer, state);
  const int port = server->port();
  int ready[2];
  int go[2];
  CHECK_EQ(pipe(ready), 0);
  CHECK_EQ(pipe(go), 0);
  const pid_t client = fork();
  if (client == 0) _exit(idle_client(port, connections, ready[1], go[0]));
  const double memory = resident_mib();
  server->start();
  char byte = 0;
  CHECK_EQ(read(ready[0], &byte, 1), 1);
  const double held = resident_mib();
  const double cpu = cpu_seconds();
  std::this_thread::sleep_for(std::chrono::seconds(5));
  const double idle_cpu = (cpu_seconds() - cpu) / 5;
  const int64_t open = state->connections.load();
  CHECK_EQ(write(go[1], &byte, 1), 1);
  int status = 0;
  CHECK_EQ(waitpid(client, &status, 0), client);
  const bool good = WIFEXITED(status) && WEXITSTATUS(status) == 0 && open == connections;
  fmt::print("{} idle connections: {} open, {}; {:.0f} bytes each, {:.2f} % of a core while idle\n", connections, open,
             good ? "all alive" : "ERRORS", (held - memory) * (1 << 20) / connections, idle_cpu * 100);
  return good;
}

}  // namespace
}  // namespace perigee

int main(int argc, char** argv) {
  int streams = 2000;
  int idle = 10000;
  int tokens = 100;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i];
    int* const value = name == "--streams" ? &streams : name == "--idle" ? &idle : name == "--tokens" ? &tokens : nullptr;
    if (value == nullptr) {
      std::fprintf(stderr, "perigee_bench_http: unknown option '%s'; there are --streams, --idle and --tokens\n", argv[i]);
      return 2;
    }
    *value = std::atoi(argv[i + 1]);
  }
  bool good = perigee::bench_streams(256, 4 * tokens, std::chrono::milliseconds(10));
  good = perigee::bench_streams(streams, tokens, std::chrono::milliseconds(100)) && good;
  good = perigee::bench_idle(idle) && good;
  return good ? 0 : 1;
}
