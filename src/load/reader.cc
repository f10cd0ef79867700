#include "load/reader.h"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace perigee::load {
namespace {

constexpr size_t kBlock = 4096;  // what reads past the cache are aligned to, in the file, in memory and in length

size_t down(size_t x) { return x / kBlock * kBlock; }
size_t up(size_t x) { return (x + kBlock - 1) / kBlock * kBlock; }

}  // namespace

void ReadBuffer::Free::operator()(std::byte* p) const { std::free(p); }

std::byte* ReadBuffer::reserve(size_t bytes) {
  if (bytes > bytes_) {
    bytes_ = up(bytes);
    data_.reset(static_cast<std::byte*>(std::aligned_alloc(kBlock, bytes_)));
    CHECK(data_ != nullptr);
  }
  return data_.get();
}

Result<FileReader> FileReader::open(const std::string& path) {
  FileReader reader;
  reader.path_ = path;
  reader.cached_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (reader.cached_ < 0) return io_error("cannot open {}: {}", path, std::strerror(errno));
  reader.direct_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
  return reader;
}

FileReader::FileReader(FileReader&& other) noexcept { *this = std::move(other); }

FileReader& FileReader::operator=(FileReader&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(cached_, other.cached_);
  std::swap(direct_, other.direct_);
  return *this;
}

FileReader::~FileReader() {
  if (cached_ >= 0) ::close(cached_);
  if (direct_ >= 0) ::close(direct_);
}

// Reads the file from the block at `begin` on: `size` bytes if the file has them, at least `wanted`.
Status FileReader::fill(size_t begin, size_t size, size_t wanted, std::byte* to) const {
  enum class Way { kHeld, kDirect, kOrdinary } way = Way::kHeld;
  size_t done = 0;
  while (done < wanted) {
    const size_t at = way == Way::kDirect ? down(done) : done;  // a block is read again rather than in parts
    ssize_t got = 0;
    if (way == Way::kHeld) {
      const iovec into = {to + at, size - at};
      got = ::preadv2(cached_, &into, 1, static_cast<off_t>(begin + at), RWF_NOWAIT);
    } else {
      got = ::pread(way == Way::kDirect ? direct_ : cached_, to + at, size - at, static_cast<off_t>(begin + at));
    }
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && way == Way::kHeld) {
      way = errno == EAGAIN && direct_ >= 0 ? Way::kDirect : Way::kOrdinary;
    } else if (got < 0 && way == Way::kDirect && errno == EINVAL) {
      way = Way::kOrdinary;
    } else if (got < 0) {
      return io_error("cannot read {}: {}", path_, std::strerror(errno));
    } else if (at + static_cast<size_t>(got) <= done) {
      return io_error("{} ends at byte {}, byte {} is needed: it has been cut off since it was opened", path_, begin + done,
                      begin + wanted);
    } else {
      done = at + static_cast<size_t>(got);
    }
  }
  return {};
}

Result<const std::byte*> FileReader::read(size_t begin, size_t size, ReadBuffer& buffer) const {
  const size_t first = down(begin);
  std::byte* const to = buffer.reserve(std::max(up(begin + size) - first, kBlock));
  if (Status s = fill(first, up(begin + size) - first, begin + size - first, to); !s.ok()) return s.error();
  return static_cast<const std::byte*>(to + (begin - first));
}

}  // namespace perigee::load
