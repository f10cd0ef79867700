#include "serve/http_connection.h"

#include <fmt/format.h>

#include <exception>
#include <utility>

#include "base/check.h"
#include "serve/http_text.h"

namespace perigee::serve {
namespace {

using Wait = boost::asio::ip::tcp::socket;
using boost::system::error_code;

constexpr int kReadsPerTurn = 16;  // of 64 KiB: then other connections have their turn
constexpr int kStatusLeft = 499;   // for the log: the peer left first

bool passed(Connection::Clock::time_point since, double seconds, Connection::Clock::time_point now) {
  return std::chrono::duration<double>(now - since).count() > seconds;
}

// A handler must not throw; if a library below it does, the request fails and the server goes on.
void run_handler(const Site& site, const Route& route, const HttpRequest& request, const std::shared_ptr<Outbox>& outbox) {
  try {
    route.handler(request, std::make_shared<HttpReply>(outbox));
  } catch (const std::exception& exception) {
    if (site.log) site.log(LogLevel::kError, fmt::format("{} {} failed: {} (id {})", request.method, route.path,
                                                         exception.what(), request.id));
    outbox->give_up();
  }
}

}  // namespace

Connection::Connection(Loop& loop, uint64_t id, boost::asio::ip::tcp::socket socket, std::shared_ptr<Site> site)
    : loop_(loop),
      id_(id),
      socket_(std::move(socket)),
      site_(std::move(site)),
      channel_(socket_.native_handle(), site_->tls.get()),
      intake_(site_->limits.intake),
      quiet_since_(Clock::now()) {
  error_code code;
  peer_ = socket_.remote_endpoint(code);
  socket_.non_blocking(true, code);
  socket_.set_option(boost::asio::ip::tcp::no_delay(true), code);
  ++site_->connections;
  ++site_->state->connections;
}

Connection::~Connection() {
  --site_->connections;
  --site_->state->connections;
}

void Connection::read_on() {
  if (reading_ || input_ended_ || stage_ == Stage::kClosed) return;
  if (stage_ == Stage::kServing && input_.size() > site_->limits.pipelined_bytes_max) return;
  reading_ = true;
  socket_.async_wait(Wait::wait_read, [self = shared_from_this()](const error_code& code) {
    self->reading_ = false;
    if (!code) self->on_readable();
  });
}

void Connection::on_readable() {
  for (int turn = 0; turn < kReadsPerTurn; ++turn) {
    if (stage_ == Stage::kClosed) return;
    const auto outcome = channel_.read(loop_.scratch());
    switch (outcome.state) {
      case Channel::State::kDone:
        take_input({loop_.scratch().data(), outcome.bytes});
        if (stage_ == Stage::kServing && input_.size() > site_->limits.pipelined_bytes_max) return;
        break;
      case Channel::State::kWantRead:
        if (channel_.secure()) flush();  // TLS may have waited for input to go on writing
        return read_on();
      case Channel::State::kWantWrite:
        return flush_on_writable();
      case Channel::State::kEnd:
      case Channel::State::kFailed:
        input_ended_ = true;
        // An answer that is complete still goes out; anything else has lost its reader.
        if (outcome.state == Channel::State::kEnd && stage_ == Stage::kServing && outbox_->finished()) return;
        return peer_left(ExchangeEnd::kDisconnected);
    }
  }
  // TLS may hold input that the socket no longer shows, so a plain wait would not do.
  if (stage_ == Stage::kClosed || reading_) return;
  reading_ = true;
  loop_.post([self = shared_from_this()] {
    self->reading_ = false;
    self->on_readable();
  });
}

void Connection::take_input(std::string_view bytes) {
  if (stage_ == Stage::kLingering) return;
  if (stage_ == Stage::kReading && input_.empty()) {
    input_ = bytes.substr(consume(bytes));
    return;
  }
  input_ += bytes;
  if (stage_ == Stage::kReading) input_.erase(0, consume(input_));
}

size_t Connection::consume(std::string_view bytes) {
  size_t used = 0;
  while (stage_ == Stage::kReading) {
    if (intake_.state() == Intake::State::kIdle) started_ = Clock::now();
    const size_t n = intake_.feed(bytes.substr(used));
    used += n;
    if (!charge_body()) return bytes.size();
    switch (intake_.state()) {
      case Intake::State::kBad:
        refuse(intake_.error());
        return bytes.size();
      case Intake::State::kDone:
        serve();
        break;
      case Intake::State::kBody:
        if (judged_ && n == 0) return used;
        if (!judged_ && !judge()) return used;
        break;
      case Intake::State::kIdle:
      case Intake::State::kHead:
        return used;
    }
  }
  return used;
}

// Many bodies at once must not fill the memory, however small the limit of one.
bool Connection::charge_body() {
  const auto bytes = static_cast<int64_t>(intake_.body_bytes());
  if (bytes == 0) return true;
  HttpRequest& request = intake_.request();
  if (request.held == nullptr) request.held = std::make_shared<BodyCharge>(site_->state);
  const int64_t all = std::static_pointer_cast<BodyCharge>(request.held)->grow_to(bytes);
  if (all <= site_->limits.bodies_bytes_max) return true;
  request.held.reset();
  refuse({503, "too many bytes of other requests wait to be read; try again later"});
  return false;
}

std::shared_ptr<Outbox> Connection::open_outbox(bool keep_alive) {
  HttpRequest& request = intake_.request();
  const auto given = request.headers.find("x-request-id");
  request.id = given != request.headers.end() && is_request_id(given->second) ? given->second : make_request_id();
  method_ = request.method;
  id_text_ = request.id;
  ReplyTerms terms;
  terms.http_1_0 = intake_.http_1_0();
  terms.head_only = request.method == "HEAD";
  terms.keep_alive = keep_alive;
  terms.request_id = request.id;
  terms.headers = cors_headers(site_->cors, request);
  terms.queue_bytes_max = site_->limits.stream_queue_bytes;
  terms.draining = site_->draining;
  stage_ = Stage::kServing;
  finish_ = Outbox::Finish::kOpen;
  wrote_ = Clock::now();
  ++site_->state->in_flight;
  ++site_->state->requests;
  outbox_ = std::make_shared<Outbox>(std::move(terms), loop_.waker(), id_);
  return outbox_;
}

bool Connection::judge() {
  judged_ = true;
  HttpRequest& request = intake_.request();
  const Site::Verdict verdict = site_->judge(request, intake_.has_body());
  route_ = verdict.route;
  if (verdict.error) {
    refuse(*verdict.error, verdict.headers);
    return false;
  }
  if (route_ == nullptr) {  // a preflight or OPTIONS
    open_outbox(intake_.keep_alive() && intake_.received())->send(204, "", "", verdict.headers);
    return false;
  }
  if (intake_.expects_continue() && !intake_.received() && intake_.body_bytes() == 0) {
    out_.emplace_back("HTTP/1.1 100 Continue\r\n\r\n");
    interim_ = true;
    write_out();
  }
  return true;
}

void Connection::refuse(const ApiError& error, Headers headers) {
  // What is left of a refused body cannot be told from the next request, so the connection ends unless the body is here.
  const bool whole = intake_.state() == Intake::State::kBody && intake_.received();
  HttpReply reply(open_outbox(whole && intake_.keep_alive()));
  send_error(reply, error, std::move(headers));
}

void Connection::serve() {
  CHECK(route_ != nullptr);
  auto outbox = open_outbox(intake_.keep_alive());
  if (route_->where == Where::kInline) return run_handler(*site_, *route_, intake_.request(), outbox);
  auto request = std::make_shared<HttpRequest>(std::move(intake_.request()));
  const bool taken = site_->run_later([site = site_, route = route_, request = std::move(request), outbox] {
    if (!outbox->gone()) run_handler(*site, *route, *request, outbox);  // it may have waited longer than its peer
  });
  if (taken) return;
  HttpReply reply(outbox);
  send_error(reply, {503, "too many requests wait to be read; try again later"});
}

void Connection::flush() {
  if (stage_ == Stage::kClosed || outbox_ == nullptr) {
    if (interim_) write_out();
    return;
  }
  while (true) {
    if (outbox_->cut()) return peer_left(ExchangeEnd::kCut);
    if (!write_out()) return;
    finish_ = outbox_->take(out_);
    if (out_.empty()) break;
    wrote_ = Clock::now();
  }
  if (finish_ == Outbox::Finish::kDone) answer_written();
  if (finish_ == Outbox::Finish::kAbandoned) {
    report(ExchangeEnd::kAbandoned);
    close(intake_.http_1_0());  // an orderly end would look like the end of the answer
  }
}

bool Connection::write_out() {
  if (writing_) return false;
  while (out_piece_ < out_.size()) {
    const auto outcome = channel_.write(out_, out_piece_, out_offset_);
    switch (outcome.state) {
      case Channel::State::kDone: break;
      case Channel::State::kWantRead: return false;  // on_readable() comes back here
      case Channel::State::kWantWrite: flush_on_writable(); return false;
      case Channel::State::kEnd:
      case Channel::State::kFailed: peer_left(ExchangeEnd::kDisconnected); return false;
    }
    wrote_ = Clock::now();
    if (outbox_ != nullptr && !interim_) outbox_->written(outcome.bytes);
    size_t left = outcome.bytes;
    while (out_piece_ < out_.size() && left >= out_[out_piece_].size() - out_offset_) {
      left -= out_[out_piece_].size() - out_offset_;
      out_[out_piece_].clear();
      ++out_piece_;
      out_offset_ = 0;
    }
    out_offset_ += left;
  }
  out_.clear();
  out_piece_ = 0;
  interim_ = false;
  return true;
}

void Connection::flush_on_writable() {
  if (writing_ || stage_ == Stage::kClosed) return;
  writing_ = true;
  socket_.async_wait(Wait::wait_write, [self = shared_from_this()](const error_code& code) {
    self->writing_ = false;
    if (code || self->stage_ == Stage::kClosed) return;
    self->flush();
    if (self->channel_.secure() && !self->reading_) self->on_readable();  // a read may have waited for room to write
  });
}

void Connection::answer_written() {
  const bool go_on = outbox_->keep_alive() && !site_->draining->load();  // a drain may have begun after the head was sent
  report(ExchangeEnd::kDone);
  quiet_since_ = Clock::now();
  intake_.reset();
  judged_ = false;
  route_ = nullptr;
  if (!go_on) return linger();
  stage_ = Stage::kReading;
  if (!input_.empty()) input_.erase(0, consume(input_));
  if (input_ended_ && stage_ == Stage::kReading) return close();  // all that was sent ahead is answered
  read_on();
}

void Connection::linger() {
  // Closing at once, with input unread, would make the peer's system throw the answer away.
  channel_.say_end();
  error_code code;
  socket_.shutdown(Wait::shutdown_send, code);
  if (code || input_ended_) return close();
  stage_ = Stage::kLingering;
  input_ = {};
  read_on();
}

void Connection::tick(Clock::time_point now) {
  const HttpLimits& limits = site_->limits;
  switch (stage_) {
    case Stage::kReading:
      if (!channel_.handshake_done()) {
        if (passed(quiet_since_, limits.header_time_s, now)) close();
      } else if (idle()) {
        if (passed(quiet_since_, limits.keep_alive_s, now)) close();
      } else if (passed(started_, limits.header_time_s + static_cast<double>(intake_.body_bytes()) / limits.body_bytes_per_s,
                        now)) {
        refuse({408, "the request came too slowly"});
      }
      break;
    case Stage::kServing:
      if (out_.empty()) {
        if (limits.sse_keep_alive_s > 0 && passed(wrote_, limits.sse_keep_alive_s, now)) {
          outbox_->keep_alive_comment();
          flush();
        }
      } else if (passed(wrote_, limits.write_stall_s, now)) {
        peer_left(ExchangeEnd::kCut);
      }
      break;
    case Stage::kLingering:
      if (passed(quiet_since_, limits.linger_s, now)) close();
      break;
    case Stage::kClosed:
      break;
  }
}

void Connection::close_if_idle() {
  if (idle()) close();
}

void Connection::break_off() {
  if (outbox_ != nullptr) {
    outbox_->peer_gone();
    report(ExchangeEnd::kAbandoned);
  }
  close(true);
}

void Connection::peer_left(ExchangeEnd end) {
  if (outbox_ != nullptr) {
    outbox_->peer_gone();
    ++(end == ExchangeEnd::kCut ? site_->state->readers_cut : site_->state->disconnects);
    report(end);
  }
  close(end == ExchangeEnd::kCut);
}

void Connection::report(ExchangeEnd end) {
  --site_->state->in_flight;
  const std::shared_ptr<Outbox> outbox = std::move(outbox_);
  outbox_ = nullptr;
  if (!site_->on_finished) return;
  FinishedRequest finished;
  finished.peer = fmt::format("{}:{}", peer_.address().to_string(), peer_.port());
  finished.method = std::move(method_);
  finished.target = intake_.raw_path();
  if (route_ != nullptr) finished.route = route_->path;
  finished.id = std::move(id_text_);
  finished.status = outbox->status() == 0 ? kStatusLeft : outbox->status();
  finished.bytes = outbox->bytes();
  finished.seconds = std::chrono::duration<double>(Clock::now() - started_).count();
  finished.end = end;
  site_->on_finished(finished);
}

void Connection::close(bool reset) {
  if (stage_ == Stage::kClosed) return;
  stage_ = Stage::kClosed;
  error_code code;
  // With a reset the system frees what the peer has not read; without one it would keep it for minutes.
  if (reset) socket_.set_option(boost::asio::socket_base::linger(true, 0), code);
  socket_.close(code);
  out_ = {};
  input_ = {};
  loop_.remove(id_);
}

}  // namespace perigee::serve
