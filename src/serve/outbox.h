// What    One answer on its way out: handlers put bytes in from any thread, the thread that owns the socket takes them out.
// Owner   serve. http_connection makes one for each request; the handler holds it through an HttpReply.
// Threads The first half of Outbox and all of Waker may be called from any thread, the rest from the socket's thread.
// Errors  Bytes beyond the bound mark the answer as cut: its reader does not read. A handler that lets go of its reply without an
//         answer gets a 500 sent, or a stream broken off.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "serve/exchange.h"

namespace perigee::serve {

// Tells the thread of a set of connections that some of them have something to send. However many do, the thread is woken once.
class Waker {
 public:
  explicit Waker(std::function<void()> wake) : wake_(std::move(wake)) {}
  void notify(uint64_t connection);
  void take(std::vector<uint64_t>& connections);  // replaces the content
  void close();                                   // the thread is gone: notify() does nothing from now on

 private:
  std::mutex mutex_;
  std::function<void()> wake_;
  std::vector<uint64_t> waiting_;
};

// What an answer must know of its request.
struct ReplyTerms {
  bool http_1_0 = false;    // no chunks: the end of the connection ends a stream
  bool head_only = false;   // HEAD: the body is left out
  bool keep_alive = true;
  std::string request_id;
  Headers headers;          // for every answer
  size_t queue_bytes_max = 0;
  std::shared_ptr<const std::atomic<bool>> draining = {};  // once true, answers say that the connection closes
};

class Outbox {
 public:
  Outbox(ReplyTerms terms, std::shared_ptr<Waker> waker, uint64_t connection);

  // As in Reply.
  void send(int status, std::string_view content_type, std::string body, Headers headers);
  void begin(int status, std::string_view content_type, Headers headers);
  void write(std::string_view piece);
  void end();
  void abandon();
  void on_disconnect(std::function<void()> callback);
  // The handler failed or let its reply go: ends whatever is not ended.
  void give_up();
  bool gone();  // the peer has left

  enum class Finish { kOpen, kDone, kAbandoned, kCut };
  // Moves what is to be sent into `pieces`, which must be empty, and says whether more will come.
  Finish take(std::vector<std::string>& pieces);
  void written(size_t bytes);  // of those taken
  bool cut() const { return cut_.load(std::memory_order_relaxed); }
  bool finished();
  // The peer has left: calls the handler's callback unless the answer was complete, and drops what comes from now on.
  void peer_gone();
  // A comment line, if this is an open stream of events.
  void keep_alive_comment();

  // For the socket's thread, once take() has said that the answer is finished or begun.
  bool keep_alive();
  int status();  // 0: not begun
  uint64_t bytes();

 private:
  enum class Stage { kNew, kStreaming, kEnded, kGone };
  void append_head(int status, std::string_view content_type, const Headers& headers, int64_t body_bytes);
  void append(std::string_view bytes);
  std::string& tail();
  void count(size_t bytes);

  const ReplyTerms terms_;
  const std::shared_ptr<Waker> waker_;
  const uint64_t connection_;
  std::atomic<size_t> queued_{0};  // put in and not yet written to the socket
  std::atomic<bool> cut_{false};

  std::mutex mutex_;
  Stage stage_ = Stage::kNew;
  Finish finish_ = Finish::kOpen;
  bool chunked_ = false;
  bool events_ = false;  // text/event-stream
  bool keep_alive_;
  int status_ = 0;
  uint64_t bytes_ = 0;
  std::vector<std::string> pending_;
  std::function<void()> on_disconnect_;
};

// The handler's hold on an outbox.
class HttpReply final : public Reply {
 public:
  explicit HttpReply(std::shared_ptr<Outbox> outbox) : outbox_(std::move(outbox)) {}
  HttpReply(const HttpReply&) = delete;
  HttpReply& operator=(const HttpReply&) = delete;
  ~HttpReply() override { outbox_->give_up(); }

  void send(int status, std::string_view content_type, std::string body, Headers headers) override;
  void begin(int status, std::string_view content_type, Headers headers) override;
  void write(std::string piece) override { outbox_->write(piece); }
  void end() override { outbox_->end(); }
  void abandon() override { outbox_->abandon(); }
  void on_disconnect(std::function<void()> callback) override { outbox_->on_disconnect(std::move(callback)); }

 private:
  std::shared_ptr<Outbox> outbox_;
};

}  // namespace perigee::serve
