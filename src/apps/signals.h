// What    SIGTERM and SIGINT of a server: while it loads they end the process at once with status 0, because a load that nobody
//         waits for any more can neither be drained nor hurried; afterwards they end wait().
// Owner   apps.
// Threads Made on the main thread before any other thread exists, so that all of them inherit the blocked signals. A thread of
//         its own waits for them.
// Errors  None.
#pragma once

#include <signal.h>

#include <atomic>
#include <thread>

namespace perigee::apps {

class SignalWatch {
 public:
  SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;
  ~SignalWatch();

  void start();   // from here on a signal ends the process
  void loaded();  // from here on it ends wait()
  void wait();

 private:
  enum class State { kLoading, kLoaded, kEnding };

  sigset_t signals_;
  std::atomic<State> state_{State::kLoading};
  std::thread thread_;  // last: it reads the rest
};

}  // namespace perigee::apps
