#include "model/weight_sink.h"

#include <algorithm>

namespace perigee::model {
namespace {

constexpr size_t kLeastBytes = size_t{4} << 20;

}  // namespace

std::byte* WeightSink::Way::open(void* destination, size_t bytes) {
  destination_ = destination;
  bytes_ = bytes;
  if (device_ != tensor::Device::kCuda) return static_cast<std::byte*>(destination);
  turn_ = 1 - turn_;
  Buffer& b = buffers_[turn_];
  if (b.stream.handle() == nullptr) b.stream = std::move(tensor::GpuStream::create()).value();
  b.stream.wait("copying weights");
  if (b.memory.bytes() < bytes) {
    Result<tensor::PinnedMemory> memory = tensor::PinnedMemory::create(std::max(bytes, kLeastBytes), "loading weights");
    CHECK(memory.ok());
    b.memory = std::move(*memory);
  }
  return b.memory.data();
}

void WeightSink::Way::close() {
  if (device_ != tensor::Device::kCuda) return;
  buffers_[turn_].stream.to_gpu(destination_, buffers_[turn_].memory.data(), bytes_);
}

std::unique_ptr<WeightSink::Way> WeightSink::take() {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) {
    auto way = std::make_unique<Way>();
    way->device_ = device_;
    return way;
  }
  std::unique_ptr<Way> way = std::move(free_.back());
  free_.pop_back();
  return way;
}

void WeightSink::give(std::unique_ptr<Way> way) {
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(way));
}

void WeightSink::finish() {
  for (const std::unique_ptr<Way>& way : free_) {
    for (Way::Buffer& b : way->buffers_) {
      if (b.stream.handle() != nullptr) b.stream.wait("copying weights");
    }
  }
}

}  // namespace perigee::model
