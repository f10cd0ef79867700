#include "serve/delivery.h"

#include <utility>

#include "serve/session.h"

namespace perigee::serve {

Delivery::Delivery() : thread_([this] { loop(); }) {}

Delivery::~Delivery() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void Delivery::post(std::shared_ptr<Session> session, size_t choice, engine::TokenUpdate&& update) {
  bool was_empty = false;
  {
    const std::lock_guard lock(mutex_);
    was_empty = waiting_.empty();
    waiting_.push_back({std::move(session), choice, std::move(update)});
    ++posted_;
  }
  if (was_empty) changed_.notify_one();  // else the thread is awake, or was told already
}

void Delivery::settle() {
  std::unique_lock lock(mutex_);
  const uint64_t wanted = posted_;
  idle_.wait(lock, [&] { return delivered_ >= wanted; });
}

void Delivery::loop() {
  std::vector<Item> batch;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    batch.swap(waiting_);
    lock.unlock();
    const size_t count = batch.size();
    for (Item& item : batch) item.session->deliver(item.choice, std::move(item.update));
    batch.clear();
    lock.lock();
    delivered_ += count;
    idle_.notify_all();
  }
}

}  // namespace perigee::serve
