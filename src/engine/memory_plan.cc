#include "engine/memory_plan.h"

#include <algorithm>
#include <limits>

#include "base/memory.h"
#include "tensor/gpu.h"

namespace perigee::engine {
namespace {

double gib(int64_t bytes) { return static_cast<double>(bytes) / static_cast<double>(int64_t{1} << 30); }

}  // namespace

MemoryPlan& MemoryPlan::add(const std::string& what, int64_t bytes, const std::string& way_out) {
  pieces_.push_back({what, bytes, way_out});
  return *this;
}

MemoryPlan& MemoryPlan::add(const MemoryPlan& others) {
  pieces_.insert(pieces_.end(), others.pieces_.begin(), others.pieces_.end());
  return *this;
}

int64_t MemoryPlan::bytes() const {
  int64_t sum = 0;
  for (const Piece& p : pieces_) sum += p.bytes;
  return sum;
}

Status MemoryPlan::check(int64_t free_bytes, const std::string& where) const {
  if (bytes() <= free_bytes) return {};
  std::string list, ways;
  for (const Piece& p : pieces_) {
    list += fmt::format("{}{} {:.2f} GiB", list.empty() ? "" : " + ", p.what, gib(p.bytes));
    if (!p.way_out.empty() && p.bytes > 0) ways += (ways.empty() ? "; " : " or ") + p.way_out;
  }
  return resource_exhausted("{} = {:.2f} GiB, {:.2f} GiB are free on {}; nothing was allocated{}", list, gib(bytes()),
                            gib(free_bytes), where, ways);
}

Status MemoryPlan::check(tensor::Device device) const {
  return check(free_memory(device), device == tensor::Device::kCuda ? "the GPU" : "this machine");
}

int64_t cache_budget(int64_t total, int64_t free, double share, int64_t others) {
  const auto usable = static_cast<int64_t>(share * static_cast<double>(total));
  return std::max<int64_t>(usable - (total - free) - others, 0);
}

int64_t free_memory(tensor::Device device) {
  size_t bytes = available_memory();
  if (device == tensor::Device::kCuda) {
    const Result<tensor::GpuInfo> gpu = tensor::open_gpu(0);
    bytes = gpu.ok() ? gpu->free_bytes : 0;
  }
  return static_cast<int64_t>(std::min(bytes, static_cast<size_t>(std::numeric_limits<int64_t>::max())));
}

}  // namespace perigee::engine
