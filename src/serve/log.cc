#include "serve/log.h"

#include <spdlog/async.h>
#include <spdlog/async_logger.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <memory>

namespace perigee::serve {
namespace {

constexpr size_t kLinesMax = 8192;  // that wait to be written

// The logger needs its thread to the end, so both live as long as the sink.
struct StderrLog {
  std::shared_ptr<spdlog::details::thread_pool> thread = std::make_shared<spdlog::details::thread_pool>(kLinesMax, 1);
  std::shared_ptr<spdlog::async_logger> logger =
      std::make_shared<spdlog::async_logger>("serve", std::make_shared<spdlog::sinks::stderr_sink_mt>(), thread,
                                             spdlog::async_overflow_policy::overrun_oldest);
};

spdlog::level::level_enum level_of(LogLevel level) {
  switch (level) {
    case LogLevel::kInfo: return spdlog::level::info;
    case LogLevel::kWarning: return spdlog::level::warn;
    case LogLevel::kError: return spdlog::level::err;
  }
  return spdlog::level::info;
}

}  // namespace

LogSink stderr_log() {
  auto log = std::make_shared<StderrLog>();
  log->logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e %l %v");
  return [log](LogLevel level, const std::string& line) { log->logger->log(level_of(level), spdlog::string_view_t(line)); };
}

}  // namespace perigee::serve
