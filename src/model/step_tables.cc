#include "model/step_tables.h"

#include <algorithm>
#include <cstring>

namespace perigee::model {
namespace {

constexpr size_t kLeastBytes = size_t{1} << 16;

size_t blocks_in_use(const StepPart& p) {
  const int64_t tokens = p.sequence->length() + p.rows;
  const int64_t block = p.sequence->pool().layout().block_tokens();
  return static_cast<size_t>((tokens + block - 1) / block);
}

}  // namespace

// Growing moves everything; a graph that reads the old place is told by parts().device, which the decoder compares.
Status StepTables::reserve(size_t bytes) {
  if (bytes <= staging_.bytes()) return {};
  context_.mover().wait("the step before");
  const size_t wanted = std::max({bytes, 2 * staging_.bytes(), kLeastBytes});
  Result<tensor::PinnedMemory> staging = tensor::PinnedMemory::create(wanted, "the tables of a step");
  if (!staging.ok()) return staging.error();
  Result<tensor::GpuArena> device = tensor::GpuArena::create(wanted, "the tables of a step");
  if (!device.ok()) return device.error();
  staging_ = std::move(*staging);
  device_ = std::move(*device);
  return {};
}

Status StepTables::fill(const Step& step) {
  const auto rows = static_cast<size_t>(step.rows());
  if (context_.device != tensor::Device::kCuda) {
    host_.clear();
    for (const StepPart& p : step.parts) host_.push_back(p.sequence->part(p.row_begin, p.rows));
    parts_ = {host_, nullptr, nullptr};
    ids_ = tensor::view(const_cast<int32_t*>(step.ids.data()), {step.rows()});
    return {};
  }
  // Parts | part of each row | ids | block tables and state tables of all parts.
  const size_t map_at = rows * sizeof(tensor::Part);
  const size_t ids_at = map_at + rows * sizeof(int32_t);
  const size_t tables_at = ids_at + rows * sizeof(int32_t);
  size_t bytes = tables_at;
  for (const StepPart& p : step.parts) bytes += (blocks_in_use(p) + p.sequence->states().size()) * sizeof(int32_t);
  if (Status s = reserve(bytes); !s.ok()) return s;
  context_.mover().wait("the step before");  // its copy may still read the staging memory

  std::byte* const to = staging_.data();
  std::byte* const there = device_.data();
  host_.clear();
  size_t at = tables_at;
  const auto put = [&](std::span<const int32_t> table) {
    std::memcpy(to + at, table.data(), table.size_bytes());
    const auto* const place = reinterpret_cast<const int32_t*>(there + at);
    at += table.size_bytes();
    return place;
  };
  auto* const part = reinterpret_cast<tensor::Part*>(to);
  auto* const map = reinterpret_cast<int32_t*>(to + map_at);
  std::fill(map, map + rows, -1);
  for (size_t i = 0; i < rows; ++i) part[i] = {};
  for (size_t i = 0; i < step.parts.size(); ++i) {
    const StepPart& p = step.parts[i];
    host_.push_back(p.sequence->part(p.row_begin, p.rows));
    part[i] = host_.back();
    part[i].blocks = put(p.sequence->blocks().first(blocks_in_use(p)));
    part[i].states = put(p.sequence->states());
    std::fill(map + p.row_begin, map + p.row_begin + p.rows, static_cast<int32_t>(i));
  }
  std::memcpy(to + ids_at, step.ids.data(), rows * sizeof(int32_t));
  context_.mover().copy(there, to, at);
  parts_ = {host_, reinterpret_cast<const tensor::Part*>(there), reinterpret_cast<const int32_t*>(there + map_at)};
  ids_ = tensor::view(reinterpret_cast<int32_t*>(there + ids_at), {step.rows()});
  return {};
}

}  // namespace perigee::model
