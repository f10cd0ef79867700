#include "apps/interrupt.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

namespace perigee::apps {
namespace {

std::atomic<int> armed_descriptor{-1};
static_assert(std::atomic<int>::is_always_lock_free);  // a signal handler may touch nothing else

void on_signal(int) {
  const int saved = errno;
  const uint64_t one = 1;
  const ssize_t written = ::write(armed_descriptor, &one, sizeof(one));
  (void)written;  // a full counter has been read by nobody yet, which is as good
  errno = saved;
}

}  // namespace

Interrupt::Interrupt(bool armed) {
  if (armed) descriptor_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (descriptor_ < 0) return;
  armed_descriptor = descriptor_;
  struct sigaction action = {};
  action.sa_handler = on_signal;
  ::sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGINT, &action, &before_);
}

Interrupt::~Interrupt() {
  if (descriptor_ < 0) return;
  ::sigaction(SIGINT, &before_, nullptr);
  armed_descriptor = -1;
  ::close(descriptor_);
}

bool Interrupt::requested() const {
  pollfd wait{descriptor_, POLLIN, 0};
  return descriptor_ >= 0 && ::poll(&wait, 1, 0) == 1;
}

}  // namespace perigee::apps
