// What    A progress bar on stderr, shown only when stderr is a terminal and the work takes noticeable time.
// Owner   apps.
// Threads update() may be called from any one thread at a time.
// Errors  None.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

namespace perigee::apps {

class ProgressBar {
 public:
  explicit ProgressBar(std::string label);
  void update(size_t done, size_t total);
  // Clears the line.
  void finish();

 private:
  std::string label_;
  bool terminal_;
  bool shown_ = false;
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point last_;
};

}  // namespace perigee::apps
