// What    Whole-file reads and read-only memory maps.
// Owner   base.
// Threads A MappedFile may be read from any thread.
// Errors  Result with the file's path and the system's reason.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/result.h"

namespace perigee {

// Reads a file of at most `bytes_max` bytes.
Result<std::string> read_file(const std::string& path, size_t bytes_max = size_t{1} << 31);

// Writes to a neighbour and renames, so that the old file stays whole if anything fails.
Status write_file(const std::string& path, const std::string& text);

bool file_exists(const std::string& path);

class MappedFile {
 public:
  static Result<MappedFile> open(const std::string& path);
  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }

  // Whether the system holds a range in memory, as far as it tells.
  bool resident(size_t offset, size_t size) const;

  // Tells the system that a range of the map was used up, so that it no longer counts as resident.
  void drop(size_t offset, size_t size) const;

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace perigee
