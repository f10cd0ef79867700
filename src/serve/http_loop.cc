#include "serve/http_loop.h"

#include <chrono>
#include <utility>

#include "serve/http_connection.h"

namespace perigee::serve {
namespace {

constexpr std::chrono::milliseconds kTick{100};

}  // namespace

Loop::Loop()
    : work_(boost::asio::make_work_guard(io_)),
      timer_(io_),
      waker_(std::make_shared<Waker>([this] { boost::asio::post(io_, [this] { flush_waiting(); }); })) {}

Loop::~Loop() { stop(); }

void Loop::start() {
  tick();
  thread_ = std::thread([this] { io_.run(); });
}

void Loop::stop() {
  if (!thread_.joinable()) return;
  post([this] {
    for_each([](Connection& connection) { connection.break_off(); });
    timer_.cancel();
    work_.reset();
  });
  thread_.join();
  waker_->close();
}

void Loop::add(boost::asio::ip::tcp::socket socket, const std::shared_ptr<Site>& site) {
  const uint64_t id = next_id_++;
  auto connection = std::make_shared<Connection>(*this, id, std::move(socket), site);
  connections_.emplace(id, connection);
  connection->start();
}

void Loop::for_each(const std::function<void(Connection&)>& body) {
  for (auto it = connections_.begin(); it != connections_.end();) {
    const std::shared_ptr<Connection> connection = (it++)->second;
    body(*connection);
  }
}

void Loop::flush_waiting() {
  waker_->take(waiting_);
  for (const uint64_t id : waiting_) {
    const auto it = connections_.find(id);
    if (it == connections_.end()) continue;
    const std::shared_ptr<Connection> connection = it->second;
    connection->flush();
  }
}

void Loop::tick() {
  timer_.expires_after(kTick);
  timer_.async_wait([this](const boost::system::error_code& code) {
    // A tick that was due when stop() cancelled the timer still comes, without a code.
    if (code || !work_.owns_work()) return;
    const auto now = std::chrono::steady_clock::now();
    for_each([now](Connection& connection) { connection.tick(now); });
    tick();
  });
}

}  // namespace perigee::serve
