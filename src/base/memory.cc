#include "base/memory.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/file.h"

namespace perigee {
namespace {

// "Name:   123 kB" in a /proc file, in bytes; `missing` when the line is not there.
size_t kilobytes_line(const std::string& path, const std::string& name, size_t missing) {
  const Result<std::string> text = read_file(path);
  if (!text.ok()) return missing;
  const size_t at = text->find(name + ":");
  if (at == std::string::npos) return missing;
  return std::strtoull(text->c_str() + at + name.size() + 1, nullptr, 10) * 1024;
}

// A control-group file with one number; "max" and absence mean no limit.
size_t number_file(const std::string& path, size_t missing) {
  const Result<std::string> text = read_file(path);
  if (!text.ok() || text->empty() || (*text)[0] < '0' || (*text)[0] > '9') return missing;
  return std::strtoull(text->c_str(), nullptr, 10);
}

}  // namespace

size_t available_memory() {
  const size_t machine = kilobytes_line("/proc/meminfo", "MemAvailable", SIZE_MAX);
  const size_t limit = number_file("/sys/fs/cgroup/memory.max", SIZE_MAX);
  const size_t used = number_file("/sys/fs/cgroup/memory.current", 0);
  const size_t group = limit == SIZE_MAX ? SIZE_MAX : limit - std::min(limit, used);
  return std::min(machine, group);
}

size_t resident_memory() { return kilobytes_line("/proc/self/status", "VmRSS", 0); }
size_t resident_memory_peak() { return kilobytes_line("/proc/self/status", "VmHWM", 0); }

}  // namespace perigee
