// What    A reply that keeps what a handler wrote, and a client that can go away.
// Owner   serve; tests only.
// Threads Any.
// Errors  None; calls out of order are kept in `faults`.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serve/exchange.h"

namespace perigee::serve::testing {

class RecordingReply : public Reply {
 public:
  void send(int status, std::string_view type, std::string body, Headers headers) override {
    const std::lock_guard lock(mutex_);
    if (over_ || begun_) faults_.push_back("send() after another beginning");
    status_ = status;
    type_ = type;
    body_ = std::move(body);
    headers_ = std::move(headers);
    end_locked();
  }
  void begin(int status, std::string_view type, Headers headers) override {
    const std::lock_guard lock(mutex_);
    if (over_ || begun_) faults_.push_back("begin() after another beginning");
    begun_ = true;
    status_ = status;
    type_ = type;
    headers_ = std::move(headers);
  }
  void write(std::string piece) override {
    const std::lock_guard lock(mutex_);
    if (over_ || !begun_) faults_.push_back("write() outside of a stream");
    ++writes_;
    body_ += piece;
  }
  void end() override {
    const std::lock_guard lock(mutex_);
    if (over_ || !begun_) faults_.push_back("end() outside of a stream");
    end_locked();
  }
  void abandon() override { end(); }
  void on_disconnect(std::function<void()> callback) override {
    const std::lock_guard lock(mutex_);
    on_disconnect_ = std::move(callback);
  }

  void disconnect() {
    std::function<void()> callback;
    {
      const std::lock_guard lock(mutex_);
      callback = std::exchange(on_disconnect_, nullptr);
    }
    if (callback) callback();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [&] { return over_; });
  }

  bool over() const { return locked(over_); }
  int status() const { return locked(status_); }
  std::string type() const { return locked(type_); }
  std::string body() const { return locked(body_); }
  Headers headers() const { return locked(headers_); }
  size_t writes() const { return locked(writes_); }
  std::vector<std::string> faults() const { return locked(faults_); }

 private:
  template <class T>
  T locked(const T& value) const {
    const std::lock_guard lock(mutex_);
    return value;
  }
  void end_locked() {
    over_ = true;
    ended_.notify_all();
  }

  mutable std::mutex mutex_;
  std::condition_variable ended_;
  std::function<void()> on_disconnect_;
  bool begun_ = false;
  bool over_ = false;
  int status_ = 0;
  std::string type_;
  std::string body_;
  Headers headers_;
  size_t writes_ = 0;
  std::vector<std::string> faults_;
};

}  // namespace perigee::serve::testing
