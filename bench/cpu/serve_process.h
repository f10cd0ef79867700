// What    The whole server (engine, service, API, HTTP) as `perigee serve` puts it together, in a process of its own, so that its
//         processor time and memory can be told from its clients'.
// Owner   bench.
// Threads Start it from a process that has no other threads; then one thread.
// Errors  Status with the sentence that the server's process gave, or that it is gone.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "base/result.h"
#include "bench/cpu/serve_load.h"

namespace perigee::bench {

struct StackOptions {
  std::string model;   // folder with config.json and a tokenizer; the weights are made up
  int64_t seqs = 256;  // that run at once
  int64_t context = 512;  // tokens of each at most; the cache has room for all of them
  int engine_threads = 1;
};

class ServerProcess {
 public:
  static Result<std::unique_ptr<ServerProcess>> start(const StackOptions& options);
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;
  ~ServerProcess();  // ends the process and waits for it

  int port() const { return port_; }
  double cpu_s() const;             // of all its threads so far
  std::map<int, double> thread_cpu_s() const;  // of each living thread; empty where the system does not tell
  int64_t resident_bytes() const;

  // The next `requests` requests wait in the engine until the last one has come, and are kept for replay() if `keep`.
  Status hold(int64_t requests, bool keep);
  // Runs the kept requests again on the engine's service alone, held in the same way; returns the tokens made.
  Result<int64_t> replay();
  Result<int64_t> steps();  // of the engine so far

 private:
  ServerProcess() = default;
  Result<int64_t> ask(char what, int64_t number);

  pid_t pid_ = -1;
  Socket channel_;
  int port_ = 0;
};

}  // namespace perigee::bench
