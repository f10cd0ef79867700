#include "tensor/arena.h"

#include <sys/mman.h>

#include <utility>

#include "base/memory.h"

namespace perigee::tensor {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kSmallPage = 4096;

}  // namespace

Result<Arena> Arena::create(size_t bytes, const std::string& what, Device device) {
  Arena arena;
  if (bytes == 0) return arena;
  if (device == Device::kCuda) {
    Result<GpuArena> gpu = GpuArena::create(aligned(bytes), what);
    if (!gpu.ok()) return gpu.error();
    arena.gpu_ = std::move(*gpu);
    arena.data_ = arena.gpu_.data();
    arena.capacity_ = aligned(bytes);
    return arena;
  }
  const size_t free = available_memory();
  if (bytes > free) {
    return resource_exhausted("{} needs {:.2f} GiB, {:.2f} GiB are free on this machine", what,
                              static_cast<double>(bytes) / (1 << 30),
                              static_cast<double>(free) / (1 << 30));
  }
  void* data = ::mmap(nullptr, aligned(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return resource_exhausted("{} needs {:.1f} GiB, which the system refused", what,
                              static_cast<double>(bytes) / (1 << 30));
  }
  if (bytes >= kHugePage) ::madvise(data, aligned(bytes), MADV_HUGEPAGE);
  arena.data_ = static_cast<std::byte*>(data);
  arena.capacity_ = aligned(bytes);
  return arena;
}

Arena::Arena(Arena&& other) noexcept { *this = std::move(other); }

Arena& Arena::operator=(Arena&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(capacity_, other.capacity_);
  std::swap(used_, other.used_);
  std::swap(frozen_, other.frozen_);
  std::swap(gpu_, other.gpu_);
  return *this;
}

Arena::~Arena() {
  if (data_ != nullptr && gpu_.data() == nullptr) ::munmap(data_, capacity_);
}

std::byte* Arena::allocate(size_t bytes) {
  CHECK(!frozen_);
  CHECK_LE(used_ + aligned(bytes), capacity_);
  std::byte* p = data_ + used_;
  used_ += aligned(bytes);
  return p;
}

Tensor Arena::tensor(DType dtype, std::initializer_list<int64_t> dims) {
  Tensor t = view(nullptr, dtype, dims);
  t.data = allocate(static_cast<size_t>(t.size() * dtype_bytes(dtype)));
  return t;
}

void Arena::prefault() {
  if (data_ == nullptr || gpu_.data() != nullptr) return;
#if defined(MADV_POPULATE_WRITE)
  if (::madvise(data_, capacity_, MADV_POPULATE_WRITE) == 0) return;
#endif
  // An older kernel: every page is written with what it holds.
  for (size_t i = 0; i < capacity_; i += kSmallPage) {
    volatile std::byte* const p = data_ + i;
    *p = *p;
  }
}

size_t Arena::freeze() {
  frozen_ = true;
  return used_;
}

}  // namespace perigee::tensor
