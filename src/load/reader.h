// What    Reads ranges of a file by many threads at once: what the system already holds is copied from there, the rest is read
//         past its cache in whole blocks.
// Owner   load.
// Threads A FileReader by any number of threads, a ReadBuffer by one.
// Errors  Result with the path and the system's reason; a file that ends early is named as such.
//
// Past the cache a disk is read at its own rate, in parallel, without a second copy in memory and without pushing out what other
// programs need. Where a file system knows no such reads, ordinary ones take their place.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "base/result.h"

namespace perigee::load {

// Memory for the last read, grown as needed.
class ReadBuffer {
 public:
  std::byte* reserve(size_t bytes);

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte, Free> data_;
  size_t bytes_ = 0;
};

class FileReader {
 public:
  static Result<FileReader> open(const std::string& path);
  FileReader(FileReader&& other) noexcept;
  FileReader& operator=(FileReader&& other) noexcept;
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;
  ~FileReader();

  // Bytes [begin, begin + size) of the file; they stay in the buffer until its next use.
  Result<const std::byte*> read(size_t begin, size_t size, ReadBuffer& buffer) const;

 private:
  FileReader() = default;
  Status fill(size_t begin, size_t size, size_t wanted, std::byte* to) const;

  std::string path_;
  int cached_ = -1;  // descriptor through the system's cache
  int direct_ = -1;  // past it; -1: not to be had
};

}  // namespace perigee::load
