#include "apps/signals.h"

#include <fmt/format.h>
#include <pthread.h>

#include <cstdio>
#include <cstdlib>

#include "base/check.h"

namespace perigee::apps {

SignalWatch::SignalWatch() {
  sigemptyset(&signals_);
  sigaddset(&signals_, SIGTERM);
  sigaddset(&signals_, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
}

void SignalWatch::start() {
  thread_ = std::thread([this] {
    int which = 0;
    while (sigwait(&signals_, &which) != 0) {
    }
    State expected = State::kLoading;
    if (!state_.compare_exchange_strong(expected, State::kEnding)) return;
    // Past the log, whose own thread would be lost with its lines; no destructors, as other threads are in the middle of work.
    fmt::print(stderr, "perigee: ended while loading\n");
    std::_Exit(0);
  });
}

SignalWatch::~SignalWatch() {
  if (!thread_.joinable()) return;
  state_ = State::kEnding;
  pthread_kill(thread_.native_handle(), SIGTERM);
  thread_.join();
}

void SignalWatch::loaded() {
  State expected = State::kLoading;
  // A signal that came first is about to end the process.
  state_.compare_exchange_strong(expected, State::kLoaded);
}

void SignalWatch::wait() {
  CHECK(state_ != State::kLoading);
  thread_.join();
}

}  // namespace perigee::apps
