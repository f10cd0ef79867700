// What    One thread that owns sockets: its connections, their wake-ups, and a clock that looks at all of them ten times a
//         second.
// Owner   serve. server makes one or two.
// Threads start(), post() and stop() from the server's thread; everything else from the loop's own.
// Errors  The constructor throws what the system refuses (server::create catches it).
#pragma once

#include <array>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <unordered_map>
#include <vector>

#include "serve/outbox.h"
#include "serve/site.h"

namespace perigee::serve {

class Connection;

class Loop {
 public:
  Loop();
  ~Loop();

  void start();
  void post(std::function<void()> work) { boost::asio::post(io_, std::move(work)); }
  // Closes every connection, runs what is left and ends the thread. Replies that handlers still hold write into the void.
  void stop();

  boost::asio::io_context& io() { return io_; }
  const std::shared_ptr<Waker>& waker() const { return waker_; }
  std::span<char> scratch() { return scratch_; }  // for one read: idle connections need no buffers of their own

  void add(boost::asio::ip::tcp::socket socket, const std::shared_ptr<Site>& site);
  void remove(uint64_t connection) { connections_.erase(connection); }
  void for_each(const std::function<void(Connection&)>& body);  // which may close the connection it is given

 private:
  void flush_waiting();
  void tick();

  boost::asio::io_context io_{1};  // one thread: no locks inside
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  boost::asio::steady_timer timer_;
  std::shared_ptr<Waker> waker_;
  std::unordered_map<uint64_t, std::shared_ptr<Connection>> connections_;
  std::vector<uint64_t> waiting_;
  uint64_t next_id_ = 1;
  std::array<char, 65536> scratch_{};
  std::thread thread_;
};

}  // namespace perigee::serve
