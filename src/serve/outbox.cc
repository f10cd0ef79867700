#include "serve/outbox.h"

#include <fmt/format.h>

#include <utility>

#include "base/check.h"
#include "serve/errors.h"
#include "serve/http_text.h"

namespace perigee::serve {
namespace {

constexpr size_t kMergeBytes = 16384;  // small pieces share a string, larger ones are not copied twice
constexpr std::string_view kComment = ": keep-alive\n\n";
constexpr std::string_view kEventStream = "text/event-stream";

bool holds(const Headers& headers, std::string_view name) {
  for (const auto& header : headers) {
    if (equal_ignoring_case(header.first, name)) return true;
  }
  return false;
}

}  // namespace

void Waker::notify(uint64_t connection) {
  std::lock_guard lock(mutex_);
  if (!wake_) return;
  waiting_.push_back(connection);
  if (waiting_.size() == 1) wake_();
}

void Waker::take(std::vector<uint64_t>& connections) {
  connections.clear();
  std::lock_guard lock(mutex_);
  waiting_.swap(connections);
}

void Waker::close() {
  std::lock_guard lock(mutex_);
  wake_ = nullptr;
}

Outbox::Outbox(ReplyTerms terms, std::shared_ptr<Waker> waker, uint64_t connection)
    : terms_(std::move(terms)), waker_(std::move(waker)), connection_(connection), keep_alive_(terms_.keep_alive) {}

void Outbox::count(size_t bytes) {
  queued_.fetch_add(bytes, std::memory_order_relaxed);
  bytes_ += bytes;
}

std::string& Outbox::tail() {
  if (pending_.empty() || pending_.back().size() >= kMergeBytes) pending_.emplace_back();
  return pending_.back();
}

void Outbox::append(std::string_view bytes) {
  tail() += bytes;
  count(bytes.size());
}

void Outbox::append_head(int status, std::string_view content_type, const Headers& headers, int64_t body_bytes) {
  status_ = status;
  if (terms_.draining != nullptr && terms_.draining->load()) keep_alive_ = false;
  std::string head = fmt::format("HTTP/1.1 {} {}\r\n", status, reason_phrase(status));
  append_header(head, "Date", http_date());
  if (!content_type.empty()) append_header(head, "Content-Type", content_type);
  if (body_bytes >= 0) append_header(head, "Content-Length", std::to_string(body_bytes));
  if (chunked_) append_header(head, "Transfer-Encoding", "chunked");
  if (!keep_alive_) append_header(head, "Connection", "close");
  if (keep_alive_ && terms_.http_1_0) append_header(head, "Connection", "keep-alive");
  append_header(head, "X-Request-Id", terms_.request_id);
  append_header(head, "X-Content-Type-Options", "nosniff");
  if (events_) {
    if (!holds(headers, "Cache-Control")) append_header(head, "Cache-Control", "no-cache");
    append_header(head, "X-Accel-Buffering", "no");  // proxies must pass events on at once
  }
  for (const auto& [name, value] : terms_.headers) append_header(head, name, value);
  for (const auto& [name, value] : headers) append_header(head, name, value);
  head += "\r\n";
  append(head);
}

void Outbox::send(int status, std::string_view content_type, std::string body, Headers headers) {
  std::function<void()> callback;  // freed without the lock: it may hold the reply itself
  {
    std::lock_guard lock(mutex_);
    if (stage_ == Stage::kGone) return;
    CHECK(stage_ == Stage::kNew);
    const bool no_body = status == 204 || status == 304;
    append_head(status, no_body ? std::string_view() : content_type, headers,
                no_body ? -1 : static_cast<int64_t>(body.size()));
    if (!no_body && !terms_.head_only && !body.empty()) {
      if (body.size() < kMergeBytes) {
        append(body);
      } else {
        count(body.size());
        pending_.push_back(std::move(body));
      }
    }
    stage_ = Stage::kEnded;
    finish_ = Finish::kDone;
    callback.swap(on_disconnect_);
  }
  waker_->notify(connection_);
}

void Outbox::begin(int status, std::string_view content_type, Headers headers) {
  {
    std::lock_guard lock(mutex_);
    if (stage_ == Stage::kGone) return;
    CHECK(stage_ == Stage::kNew);
    if (terms_.http_1_0) keep_alive_ = false;
    chunked_ = !terms_.http_1_0;
    events_ = media_type(content_type) == kEventStream;
    append_head(status, content_type, headers, -1);
    stage_ = Stage::kStreaming;
  }
  waker_->notify(connection_);
}

void Outbox::write(std::string_view piece) {
  {
    std::lock_guard lock(mutex_);
    if (stage_ == Stage::kGone) return;
    CHECK(stage_ == Stage::kStreaming);
    if (piece.empty() || terms_.head_only) return;
    if (queued_.load(std::memory_order_relaxed) > terms_.queue_bytes_max) {
      // The socket's thread closes the connection and calls the callback: the caller may hold locks that it needs.
      stage_ = Stage::kGone;
      finish_ = Finish::kCut;
      cut_.store(true, std::memory_order_relaxed);
      pending_ = {};
    } else if (chunked_) {
      std::string& out = tail();
      const size_t before = out.size();
      append_chunk(out, piece);
      count(out.size() - before);
    } else {
      append(piece);
    }
  }
  waker_->notify(connection_);
}

void Outbox::end() {
  std::function<void()> callback;  // freed without the lock: it may hold the reply itself
  {
    std::lock_guard lock(mutex_);
    if (stage_ == Stage::kGone) return;
    CHECK(stage_ == Stage::kStreaming);
    if (chunked_ && !terms_.head_only) append(kLastChunk);
    stage_ = Stage::kEnded;
    finish_ = Finish::kDone;
    callback.swap(on_disconnect_);
  }
  waker_->notify(connection_);
}

void Outbox::abandon() {
  std::function<void()> callback;  // freed without the lock: it may hold the reply itself
  {
    std::lock_guard lock(mutex_);
    if (stage_ == Stage::kGone) return;
    CHECK(stage_ != Stage::kEnded);
    stage_ = Stage::kEnded;
    finish_ = Finish::kAbandoned;
    callback.swap(on_disconnect_);
  }
  waker_->notify(connection_);
}

void Outbox::on_disconnect(std::function<void()> callback) {
  {
    std::lock_guard lock(mutex_);
    if (stage_ == Stage::kEnded) return;
    if (stage_ != Stage::kGone || finish_ == Finish::kCut) {
      on_disconnect_ = std::move(callback);
      return;
    }
  }
  callback();  // it left before anybody asked
}

void Outbox::give_up() {
  bool unanswered = false;
  bool unended = false;
  {
    std::lock_guard lock(mutex_);
    unanswered = stage_ == Stage::kNew;
    unended = stage_ == Stage::kStreaming;
  }
  if (unanswered)
    send(500, "application/json", error_body({500, "the request was given up without an answer"}), {});
  if (unended) abandon();
}

Outbox::Finish Outbox::take(std::vector<std::string>& pieces) {
  std::lock_guard lock(mutex_);
  pieces.swap(pending_);
  return finish_;
}

void Outbox::written(size_t bytes) { queued_.fetch_sub(bytes, std::memory_order_relaxed); }

bool Outbox::gone() {
  std::lock_guard lock(mutex_);
  return stage_ == Stage::kGone;
}

bool Outbox::finished() {
  std::lock_guard lock(mutex_);
  return stage_ == Stage::kEnded;
}

void Outbox::peer_gone() {
  std::function<void()> callback;
  {
    std::lock_guard lock(mutex_);
    callback.swap(on_disconnect_);
    stage_ = Stage::kGone;
    if (finish_ == Finish::kCut) finish_ = Finish::kAbandoned;  // a callback that comes late is called at once
    pending_ = {};
  }
  if (callback) callback();
}

void Outbox::keep_alive_comment() {
  std::lock_guard lock(mutex_);
  if (stage_ != Stage::kStreaming || !events_ || terms_.head_only) return;
  std::string text;
  if (chunked_) append_chunk(text, kComment);
  append(chunked_ ? std::string_view(text) : kComment);
}

bool Outbox::keep_alive() {
  std::lock_guard lock(mutex_);
  return keep_alive_;
}

int Outbox::status() {
  std::lock_guard lock(mutex_);
  return status_;
}

uint64_t Outbox::bytes() {
  std::lock_guard lock(mutex_);
  return bytes_;
}

void HttpReply::send(int status, std::string_view content_type, std::string body, Headers headers) {
  outbox_->send(status, content_type, std::move(body), std::move(headers));
}

void HttpReply::begin(int status, std::string_view content_type, Headers headers) {
  outbox_->begin(status, content_type, std::move(headers));
}

}  // namespace perigee::serve
