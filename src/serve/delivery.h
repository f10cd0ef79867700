// What    Carries token updates from the engine's thread to a thread that turns them into text, so that a step never
//         waits for it.
// Owner   serve.
// Threads post() from any thread; handlers run on the one delivery thread, in the order of posting.
// Errors  None.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/backend.h"

namespace perigee::serve {

class Session;

class Delivery {
 public:
  Delivery();
  ~Delivery();  // what was posted is delivered first
  Delivery(const Delivery&) = delete;
  Delivery& operator=(const Delivery&) = delete;

  void post(std::shared_ptr<Session> session, size_t choice, engine::TokenUpdate&& update);
  // Waits until everything posted before the call is delivered. Not from the delivery thread.
  void settle();

 private:
  struct Item {
    std::shared_ptr<Session> session;
    size_t choice = 0;
    engine::TokenUpdate update;
  };
  void loop();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::condition_variable idle_;
  std::vector<Item> waiting_;
  uint64_t posted_ = 0;
  uint64_t delivered_ = 0;
  bool stopping_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace perigee::serve
