// What    For tests of the server: a plain blocking client on raw sockets, and a server with scripted routes.
// Owner   serve, tests only.
// Threads One client, one thread. Scripted routes may be called from any thread.
// Errors  A client that waits longer than kPatience_s gives up and says so.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "serve/http_text.h"
#include "serve/server.h"

namespace perigee::serve::testing {

inline constexpr int kPatience_s = 20;

struct Response {
  int status = 0;
  std::map<std::string, std::string> headers;
  std::string body;
  bool complete = false;  // to the last chunk, or to its length
};

class Client {
 public:
  explicit Client(int port, int receive_buffer = 0) {
    socket_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK_GE(socket_, 0);
    if (receive_buffer > 0) ::setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  ~Client() { close(); }

  bool connected() const { return connected_; }
  int socket() const { return socket_; }
  void close() {
    if (socket_ >= 0) ::close(socket_);
    socket_ = -1;
  }
  void end_sending() { ::shutdown(socket_, SHUT_WR); }

  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }

  // Waits for more bytes; false at the end of the connection or of the patience.
  bool receive(int patience_ms = kPatience_s * 1000) {
    pollfd wait{socket_, POLLIN, 0};
    if (::poll(&wait, 1, patience_ms) <= 0) return false;
    char buffer[65536];
    const ssize_t n = ::recv(socket_, buffer, sizeof(buffer), 0);
    if (n <= 0) {
      closed_ = true;
      return false;
    }
    received_.append(buffer, static_cast<size_t>(n));
    return true;
  }
  // The peer closed the connection, within the time.
  bool closed(int patience_ms = kPatience_s * 1000) {
    while (!closed_ && receive(patience_ms)) {
    }
    return closed_;
  }
  std::string& received() { return received_; }
  bool wait_for(std::string_view text) {
    while (received_.find(text) == std::string::npos) {
      if (!receive()) return false;
    }
    return true;
  }

  Response response(bool head = false) {
    Response result;
    if (!wait_for("\r\n\r\n")) return result;
    const size_t end = received_.find("\r\n\r\n");
    std::string text = received_.substr(0, end + 2);
    received_.erase(0, end + 4);
    result.status = std::stoi(text.substr(9, 3));
    for (size_t at = text.find("\r\n") + 2; at < text.size();) {
      const size_t line_end = text.find("\r\n", at);
      const std::string line = text.substr(at, line_end - at);
      const size_t colon = line.find(": ");
      result.headers[lower_case(line.substr(0, colon))] = line.substr(colon + 2);
      at = line_end + 2;
    }
    if (head || result.status == 204 || result.status == 100) {
      result.complete = true;
    } else if (result.headers.contains("content-length")) {
      const size_t size = std::stoul(result.headers["content-length"]);
      while (received_.size() < size && receive()) {
      }
      result.complete = received_.size() >= size;
      result.body = received_.substr(0, size);
      received_.erase(0, size);
    } else if (result.headers.contains("transfer-encoding")) {
      read_chunks(result);
    } else {
      closed();
      result.body = std::exchange(received_, "");
    }
    return result;
  }

  Response get(const std::string& path, const std::string& headers = "") {
    send("GET " + path + " HTTP/1.1\r\nHost: x\r\n" + headers + "\r\n");
    return response();
  }
  Response post(const std::string& path, const std::string& body, const std::string& headers = "") {
    send("POST " + path + " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n" + headers + "\r\n" + body);
    return response();
  }

 private:
  void read_chunks(Response& result) {
    while (true) {
      while (received_.find("\r\n") == std::string::npos) {
        if (!receive()) return;
      }
      const size_t line = received_.find("\r\n");
      const size_t size = std::stoul(received_.substr(0, line), nullptr, 16);
      while (received_.size() < line + 2 + size + 2) {
        if (!receive()) return;
      }
      result.body += received_.substr(line + 2, size);
      received_.erase(0, line + 2 + size + 2);
      if (size > 0) continue;
      result.complete = true;
      return;
    }
  }

  int socket_ = -1;
  bool connected_ = false;
  bool closed_ = false;
  std::string received_;
};

inline bool eventually(const std::function<bool()>& condition, double seconds = kPatience_s) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

// Routes whose behaviour the request's query chooses.
//   GET  /hello             "hello", at once
//   POST /echo              the body
//   GET  /stream?n=&ms=     n events, ms apart
//   GET  /flood             events without end, as fast as they are taken
//   GET  /hold[?begin=1]    nothing at all until release(); with begin, a stream that is silent
//   GET  /abandon           one event, then the end of the connection
//   GET  /throw, /forget    a handler that fails, one that loses its reply
class ScriptedRoutes {
 public:
  ~ScriptedRoutes() {
    stop_ = true;
    for (auto& thread : threads_) thread.join();
  }

  std::vector<Route> routes() {
    const auto get = [](std::string path, Handler handler) { return Route{"GET", std::move(path), std::move(handler)}; };
    return {
        {"GET", "/open", [](const HttpRequest&, const auto& reply) { reply->send(200, "text/plain", "open", {}); },
         Access::kOpen, Where::kInline},
        {"GET", "/hello", [](const HttpRequest&, const auto& reply) { reply->send(200, "text/plain", "hello", {}); },
         Access::kKey, Where::kInline},
        {"POST", "/echo",
         [](const HttpRequest& request, const auto& reply) {
           reply->send(200, "application/json", request.body, {{"X-Tenant", request.tenant}});
         }},
        get("/item/{id}",
            [](const HttpRequest& request, const auto& reply) { reply->send(200, "text/plain", request.path, {}); }),
        get("/stream", [this](const HttpRequest& request, const auto& reply) { stream(request, reply); }),
        get("/flood", [this](const HttpRequest&, const auto& reply) { flood(reply); }),
        get("/hold", [this](const HttpRequest& request, const auto& reply) { hold(request, reply); }),
        get("/abandon",
            [](const HttpRequest&, const auto& reply) {
              reply->begin(200, "text/event-stream", {});
              reply->write("data: 1\n\n");
              reply->abandon();
            }),
        get("/throw", [](const HttpRequest&, const auto&) { throw std::runtime_error("planted"); }),
        get("/forget", [](const HttpRequest&, const auto&) {}),
    };
  }

  void release() {
    std::lock_guard lock(mutex_);
    for (const auto& reply : held_) reply->send(200, "text/plain", "released", {});
    held_.clear();
  }
  size_t held() {
    std::lock_guard lock(mutex_);
    return held_.size();
  }
  std::atomic<int> left{0};  // on_disconnect calls

 private:
  void start(std::function<void()> work) {
    std::lock_guard lock(mutex_);
    threads_.emplace_back(std::move(work));
  }
  void stream(const HttpRequest& request, const std::shared_ptr<Reply>& reply) {
    const int n = std::stoi(request.query.at("n"));
    const int ms = std::stoi(request.query.at("ms"));
    auto gone = std::make_shared<std::atomic<bool>>(false);
    reply->on_disconnect([this, gone] {
      *gone = true;
      ++left;
    });
    reply->begin(200, "text/event-stream", {});
    start([this, n, ms, reply, gone, id = request.id] {
      for (int i = 0; i < n && !stop_ && !*gone; ++i) {
        reply->write("data: " + id + " " + std::to_string(i) + "\n\n");
        if (ms > 0) std::this_thread::sleep_for(std::chrono::milliseconds(ms));
      }
      reply->end();
    });
  }
  void flood(const std::shared_ptr<Reply>& reply) {
    auto gone = std::make_shared<std::atomic<bool>>(false);
    reply->on_disconnect([this, gone] {
      *gone = true;
      ++left;
    });
    reply->begin(200, "text/event-stream", {});
    start([this, reply, gone] {
      const std::string piece = "data: " + std::string(4000, 'x') + "\n\n";
      while (!stop_ && !*gone) {
        reply->write(piece);
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
    });
  }
  void hold(const HttpRequest& request, const std::shared_ptr<Reply>& reply) {
    reply->on_disconnect([this] { ++left; });
    if (request.query.contains("begin")) reply->begin(200, "text/event-stream", {});
    std::lock_guard lock(mutex_);
    held_.push_back(reply);
  }

  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::vector<std::thread> threads_;
  std::vector<std::shared_ptr<Reply>> held_;
};

}  // namespace perigee::serve::testing
