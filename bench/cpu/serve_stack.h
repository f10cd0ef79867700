// What    The body of the server's process: wires the stack, then obeys the messages of the process that started it.
// Owner   bench.
// Threads serve_stack() is its process's main thread.
// Errors  Sent back as messages.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "bench/cpu/serve_process.h"

namespace perigee::bench {

// One packet of a local socket, either way.
struct StackMessage {
  static constexpr char kReady = 'r';   // number: the port
  static constexpr char kDone = 'd';    // number: the answer
  static constexpr char kFailed = 'f';  // text: why
  static constexpr char kHold = 'h';    // number: how many
  static constexpr char kHoldAndKeep = 'k';
  static constexpr char kReplay = 'p';
  static constexpr char kSteps = 's';

  char what = kDone;
  int64_t number = 0;
  std::array<char, 256> text{};  // ends with a zero

  void say(std::string_view sentence);
};

// Until the other end of `channel` is closed.
void serve_stack(const StackOptions& options, int channel);

}  // namespace perigee::bench
