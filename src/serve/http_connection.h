// What    One connection: reads requests, has them answered one after the other, writes the answers, and notices at once when the
//         peer leaves, because a read is always pending.
//
//           kReading -> request whole or refused -> kServing -> answer written -> kReading, or kLingering -> kClosed
//
//         While an answer is being made, further requests of the peer wait (pipelining). A peer that closes its sending side has
//         left, even if it would still read: no server can tell the two apart while an answer is being made.
// Owner   serve. http_loop owns it until it is closed.
// Threads The loop's.
// Errors  A malformed, too large or too slow request is answered and the connection closed; a broken connection is closed.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "serve/channel.h"
#include "serve/http_intake.h"
#include "serve/http_loop.h"
#include "serve/outbox.h"
#include "serve/site.h"

namespace perigee::serve {

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Clock = std::chrono::steady_clock;

  Connection(Loop& loop, uint64_t id, boost::asio::ip::tcp::socket socket, std::shared_ptr<Site> site);
  ~Connection();

  void start() { read_on(); }
  void flush();                       // writes what the outbox holds
  void tick(Clock::time_point now);   // enforces time limits
  void close_if_idle();
  void break_off();                   // closes, whatever is going on; the request is given up
  const Site& site() const { return *site_; }

 private:
  enum class Stage { kReading, kServing, kLingering, kClosed };

  // Reading.
  void read_on();
  void on_readable();
  void take_input(std::string_view bytes);
  size_t consume(std::string_view bytes);
  bool judge();                       // false: refused
  bool charge_body();                 // false: refused
  void serve();
  void refuse(const ApiError& error, Headers headers = {});
  std::shared_ptr<Outbox> open_outbox(bool keep_alive);

  // Writing.
  void flush_on_writable();
  bool write_out();                   // false: blocked or closed
  void answer_written();
  void linger();

  // Ending.
  void peer_left(ExchangeEnd end);
  void report(ExchangeEnd end);
  void close(bool reset = false);
  bool idle() const { return stage_ == Stage::kReading && intake_.state() == Intake::State::kIdle && input_.empty(); }

  Loop& loop_;
  const uint64_t id_;
  boost::asio::ip::tcp::socket socket_;
  boost::asio::ip::tcp::endpoint peer_;
  const std::shared_ptr<Site> site_;
  Channel channel_;
  Stage stage_ = Stage::kReading;

  Intake intake_;
  std::string input_;            // received and not used
  bool reading_ = false;         // a wait for input is pending
  bool input_ended_ = false;
  bool judged_ = false;
  Clock::time_point quiet_since_;  // idle, or lingering
  Clock::time_point started_;      // the first byte of the request

  std::shared_ptr<Outbox> outbox_;
  const Route* route_ = nullptr;
  std::string method_;
  std::string id_text_;
  std::vector<std::string> out_;  // taken from the outbox; written up to out_[out_piece_][out_offset_]
  size_t out_piece_ = 0;
  size_t out_offset_ = 0;
  Outbox::Finish finish_ = Outbox::Finish::kOpen;
  bool writing_ = false;          // a wait for room is pending
  bool interim_ = false;          // out_ is not the outbox's
  Clock::time_point wrote_;       // the last time that bytes went out, or that there was nothing to write
};

}  // namespace perigee::serve
