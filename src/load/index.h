// What    Opens a checkpoint folder: one model.safetensors, or the shards that model.safetensors.index.json names.
// Owner   load.
// Threads Read-only after open.
// Errors  Result with one sentence that names the index or shard and the tensor.
// Source  The index format of sharded Hugging Face checkpoints: {"metadata": {...}, "weight_map": {tensor: shard}}.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "load/safetensors.h"

namespace perigee::load {

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

struct IndexEntry {
  std::string name;
  uint32_t shard = 0;  // in `shards`
};

struct Index {
  std::vector<std::string> shards;  // file names, in order of appearance
  std::vector<IndexEntry> entries;
};

// What the text says; whether names are unique and true is seen against the shards.
Result<Index> parse_index(const std::string& text, const std::string& path);

// Opens every shard and holds the index against them: each named tensor is in its shard, and no other tensor is.
Result<std::vector<SafetensorsFile>> open_checkpoint(const std::string& folder);

}  // namespace perigee::load
