// What    Ctrl-C as a wish that can be asked for and waited for, instead of the end of the program.
// Owner   apps.
// Threads One at a time, made and ended on the main thread; descriptor() and requested() may be used from any thread.
// Errors  None: without a descriptor to spare Ctrl-C ends the program as always.
#pragma once

#include <signal.h>

namespace perigee::apps {

class Interrupt {
 public:
  // Not armed: Ctrl-C ends the program, as a script expects.
  explicit Interrupt(bool armed);
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  int descriptor() const { return descriptor_; }  // readable after Ctrl-C; -1 when not armed
  bool requested() const;

 private:
  int descriptor_ = -1;
  struct sigaction before_ = {};
};

}  // namespace perigee::apps
