// What    Lines of a server's log.
// Owner   serve.
// Threads A sink may be called from any thread.
// Errors  A log that cannot be written must not hold up the server: the oldest lines are dropped.
#pragma once

#include <functional>
#include <string>

namespace perigee::serve {

enum class LogLevel { kInfo, kWarning, kError };

using LogSink = std::function<void(LogLevel, const std::string&)>;

// Lines with time and level on stderr, written by a thread of its own.
LogSink stderr_log();

}  // namespace perigee::serve
