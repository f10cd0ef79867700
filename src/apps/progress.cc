#include "apps/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

namespace perigee::apps {
namespace {

constexpr auto kQuietTime = std::chrono::milliseconds(200);  // faster work needs no bar
constexpr auto kRefresh = std::chrono::milliseconds(50);
constexpr int kWidth = 30;

}  // namespace

ProgressBar::ProgressBar(std::string label)
    : label_(std::move(label)), terminal_(::isatty(2) == 1), start_(std::chrono::steady_clock::now()) {}

void ProgressBar::update(size_t done, size_t total) {
  if (!terminal_ || total == 0) return;
  const auto now = std::chrono::steady_clock::now();
  if (now - start_ < kQuietTime || now - last_ < kRefresh) return;
  last_ = now;
  shown_ = true;
  const double share = static_cast<double>(done) / static_cast<double>(total);
  const int filled = static_cast<int>(share * kWidth);
  fmt::print(stderr, "\r{} [{:<{}}] {:3.0f}% of {:.2f} GB", label_, std::string(static_cast<size_t>(filled), '#'),
             kWidth, share * 100, static_cast<double>(total) * 1e-9);
  std::fflush(stderr);
}

void ProgressBar::finish() {
  if (!shown_) return;
  fmt::print(stderr, "\r\x1b[K");
  std::fflush(stderr);
  shown_ = false;
}

}  // namespace perigee::apps
