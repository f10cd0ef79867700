// What    Writes tensors to one safetensors file.
// Owner   load.
// Threads Any; one writer per path.
// Errors  Result with the path and the system's reason; a tensor whose bytes do not fit its shape is a bug.
// Source  The safetensors format, header padded with spaces to a multiple of 8 so that every dtype is aligned.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "load/safetensors.h"

namespace perigee::load {

struct SaveTensor {
  std::string name;
  FileDType dtype = FileDType::kU8;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;
};

// The header (with its eight bytes of length) of tensors laid one after the other in the given order.
std::string safetensors_header(std::span<const SaveTensor> tensors,
                               std::span<const std::pair<std::string, std::string>> metadata = {});

// Writes to a neighbour and renames, so that a crash leaves the old file whole.
Status save_safetensors(const std::string& path, std::span<const SaveTensor> tensors,
                        std::span<const std::pair<std::string, std::string>> metadata = {});

}  // namespace perigee::load
