#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

namespace perigee {
namespace {

// Closes a descriptor at the end of a scope.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

Result<size_t> regular_size(int fd, const std::string& path) {
  struct stat info = {};
  if (::fstat(fd, &info) != 0) return io_error("{}: {}", path, std::strerror(errno));
  if (!S_ISREG(info.st_mode)) return io_error("{} is not a regular file", path);
  return static_cast<size_t>(info.st_size);
}

}  // namespace

Result<std::string> read_file(const std::string& path, size_t bytes_max) {
  Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) return io_error("cannot open {}: {}", path, std::strerror(errno));
  struct stat info = {};
  if (::fstat(fd.get(), &info) != 0) return io_error("{}: {}", path, std::strerror(errno));
  if (S_ISDIR(info.st_mode)) return io_error("{} is a folder, a file is needed", path);
  std::string text;
  if (info.st_size > 0) text.reserve(static_cast<size_t>(info.st_size));
  char buffer[1 << 16];
  while (true) {
    const ssize_t got = ::read(fd.get(), buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return io_error("cannot read {}: {}", path, std::strerror(errno));
    if (got == 0) return text;
    if (text.size() + static_cast<size_t>(got) > bytes_max) {
      return out_of_range("{} is larger than {} bytes", path, bytes_max);
    }
    text.append(buffer, static_cast<size_t>(got));
  }
}

Status write_file(const std::string& path, const std::string& text) {
  const std::string partial = path + ".partial";
  {
    Descriptor fd(::open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (fd.get() < 0) return io_error("cannot write {}: {}", partial, std::strerror(errno));
    size_t done = 0;
    while (done < text.size()) {
      const ssize_t put = ::write(fd.get(), text.data() + done, text.size() - done);
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) {
        const int reason = errno;
        ::unlink(partial.c_str());
        return io_error("cannot write {}: {}", partial, std::strerror(reason));
      }
      done += static_cast<size_t>(put);
    }
  }
  if (::rename(partial.c_str(), path.c_str()) != 0) {
    const int reason = errno;
    ::unlink(partial.c_str());
    return io_error("cannot replace {}: {}", path, std::strerror(reason));
  }
  return {};
}

bool file_exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

Result<MappedFile> MappedFile::open(const std::string& path) {
  Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) return io_error("cannot open {}: {}", path, std::strerror(errno));
  const Result<size_t> size = regular_size(fd.get(), path);
  if (!size.ok()) return size.error();
  MappedFile file;
  file.path_ = path;
  file.size_ = *size;
  if (file.size_ == 0) return file;
  void* data = ::mmap(nullptr, file.size_, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (data == MAP_FAILED) return io_error("cannot map {}: {}", path, std::strerror(errno));
  file.data_ = static_cast<const std::byte*>(data);
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

bool MappedFile::resident(size_t offset, size_t size) const {
  if (size == 0) return true;
  const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t begin = offset / page * page;
  std::vector<unsigned char> held((offset + size - begin + page - 1) / page);
  if (::mincore(const_cast<std::byte*>(data_) + begin, offset + size - begin, held.data()) != 0) return false;
  return std::all_of(held.begin(), held.end(), [](unsigned char state) { return (state & 1) != 0; });
}

void MappedFile::drop(size_t offset, size_t size) const {
  const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t begin = (offset + page - 1) / page * page;  // whole pages only: neighbours may be in use
  const size_t end = (offset + size) / page * page;
  if (data_ == nullptr || end <= begin || end > size_) return;
  ::madvise(const_cast<std::byte*>(data_) + begin, end - begin, MADV_DONTNEED);
}

}  // namespace perigee
