// What    Opens one safetensors file as a memory map and checks every statement of its header before anyone reads it.
// Owner   load.
// Threads Read-only after open.
// Errors  Result with one sentence that names the file and, where there is one, the tensor.
// Source  The safetensors format: eight bytes of header length, a JSON header, then the tensors' bytes without holes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/result.h"

namespace perigee::load {

constexpr size_t kHeaderBytesMax = 100'000'000;  // the limit of the format's own library

enum class FileDType : uint8_t {
  kBool,
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kU64,
  kI64,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
  kF16,
  kBF16,
  kF32,
  kF64,
  kC64,
};
const char* file_dtype_name(FileDType t);  // as the header spells it
int file_dtype_bits(FileDType t);
std::optional<FileDType> file_dtype_of(std::string_view name);

// "[96, 7168]", for messages.
std::string shape_text(std::span<const int64_t> shape);

struct FileTensor {
  std::string name;
  FileDType dtype = FileDType::kU8;
  std::vector<int64_t> shape;
  size_t begin = 0;  // bytes, counted from the end of the header
  size_t end = 0;

  size_t bytes() const { return end - begin; }
};

struct SafetensorsHeader {
  std::vector<FileTensor> tensors;  // in the order of their bytes
  size_t data_offset = 0;           // first byte after the header
};

// Checks the head of a file against the file's size. `file_bytes` may start with no more than the header.
Result<SafetensorsHeader> parse_safetensors(std::span<const std::byte> file_bytes, size_t file_size,
                                            const std::string& path);

class SafetensorsFile {
 public:
  static Result<SafetensorsFile> open(const std::string& path);

  const std::string& path() const { return map_.path(); }
  const std::vector<FileTensor>& tensors() const { return header_.tensors; }
  // The number of the tensor with this name, or -1.
  int64_t find(std::string_view name) const;

  const std::byte* data(const FileTensor& tensor) const {
    return map_.bytes().data() + header_.data_offset + tensor.begin;
  }
  std::span<const std::byte> bytes(const FileTensor& tensor) const {
    return {data(tensor), tensor.bytes()};
  }
  // Where the tensor's bytes begin in the file.
  size_t position(const FileTensor& tensor) const { return header_.data_offset + tensor.begin; }
  // Whether a range of the file lies in memory already.
  bool resident(size_t begin, size_t bytes) const { return map_.resident(begin, bytes); }
  // Lets the system forget the whole pages of a range of the file; reading them again is slow but right.
  void drop(size_t begin, size_t end) const { map_.drop(begin, end - begin); }
  size_t size() const { return map_.bytes().size(); }

 private:
  MappedFile map_;
  SafetensorsHeader header_;
  std::vector<uint32_t> by_name_;  // numbers of tensors, sorted by name
};

}  // namespace perigee::load
