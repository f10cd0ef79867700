#include "bench/cpu/serve_process.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>

#include "base/file.h"
#include "bench/cpu/serve_stack.h"

namespace perigee::bench {

Result<std::unique_ptr<ServerProcess>> ServerProcess::start(const StackOptions& options) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0)
    return resource_exhausted("a pair of sockets cannot be made: {}", std::strerror(errno));
  std::unique_ptr<ServerProcess> server(new ServerProcess);
  std::fflush(stdout);
  server->pid_ = ::fork();
  if (server->pid_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::close(ends[0]);
    serve_stack(options, ends[1]);
    ::_exit(0);  // what the parent has not printed yet is not printed twice
  }
  ::close(ends[1]);
  server->channel_ = Socket(ends[0]);
  if (server->pid_ < 0) return resource_exhausted("a process cannot be started: {}", std::strerror(errno));
  StackMessage first;
  if (::recv(ends[0], &first, sizeof first, 0) != sizeof first) return io_error("the server's process died at its start");
  if (first.what != StackMessage::kReady) return invalid_argument("{}", first.text.data());
  server->port_ = static_cast<int>(first.number);
  return server;
}

ServerProcess::~ServerProcess() {
  channel_ = Socket();
  if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
}

Result<int64_t> ServerProcess::ask(char what, int64_t number) {
  StackMessage message;
  message.what = what;
  message.number = number;
  if (::send(channel_.fd(), &message, sizeof message, MSG_NOSIGNAL) != sizeof message ||
      ::recv(channel_.fd(), &message, sizeof message, 0) != sizeof message)
    return io_error("the server's process is gone");
  if (message.what == StackMessage::kFailed) return io_error("{}", message.text.data());
  return message.number;
}

double ServerProcess::cpu_s() const {
  clockid_t clock{};
  timespec now{};
  if (::clock_getcpuclockid(pid_, &clock) != 0 || ::clock_gettime(clock, &now) != 0) return 0;
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

std::map<int, double> ServerProcess::thread_cpu_s() const {
  std::map<int, double> out;
  std::error_code code;
  for (const auto& entry : std::filesystem::directory_iterator(fmt::format("/proc/{}/task", pid_), code)) {
    const Result<std::string> text = read_file(entry.path() / "schedstat");  // first: nanoseconds on a processor
    if (text.ok()) out[std::atoi(entry.path().filename().c_str())] = 1e-9 * std::atof(text->c_str());
  }
  return out;
}

int64_t ServerProcess::resident_bytes() const {
  const Result<std::string> text = read_file(fmt::format("/proc/{}/statm", pid_));
  long all = 0;
  long resident = 0;
  if (!text.ok() || std::sscanf(text->c_str(), "%ld %ld", &all, &resident) != 2) return 0;
  return resident * ::sysconf(_SC_PAGESIZE);
}

Status ServerProcess::hold(int64_t requests, bool keep) {
  const Result<int64_t> done = ask(keep ? StackMessage::kHoldAndKeep : StackMessage::kHold, requests);
  return done.ok() ? Status() : Status(done.error());
}

Result<int64_t> ServerProcess::replay() { return ask(StackMessage::kReplay, 0); }

Result<int64_t> ServerProcess::steps() { return ask(StackMessage::kSteps, 0); }

}  // namespace perigee::bench
