// What    The rows of the weight table with their tensors in a checkpoint, after an audit: each row has its tensor,
//         with the right type and shape, and each tensor has its row or is known to be left out.
// Owner   model.
// Threads Pure functions.
// Errors  Result with one sentence that names the file and the tensor.
// Source  A checkpoint may name its tensors otherwise: perigee_renames.json maps its names to ours, {L} and {E}
//         standing for layer and expert.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "load/safetensors.h"
#include "model/weight_table.h"

namespace perigee::model {

constexpr const char* kRenamesFile = "perigee_renames.json";

// One tensor: a row of the table for one expert. Without a file its values are made up from the key.
struct WeightItem {
  const TensorRow* row = nullptr;
  int64_t expert = 0;
  const load::SafetensorsFile* file = nullptr;
  const load::FileTensor* tensor = nullptr;
  uint64_t key = 0;

  const std::byte* data() const { return file->data(*tensor); }
};

using Renames = std::map<std::string, std::string>;  // our pattern -> the checkpoint's

// Of `folder`; empty when it has no such file.
Result<Renames> read_renames(const std::string& folder, const std::vector<TensorRow>& table);

// In the order of the table; the copies of a row stand one after the other.
Result<std::vector<WeightItem>> bind_items(const std::vector<TensorRow>& table,
                                           const Config& config,
                                           const std::vector<load::SafetensorsFile>& files,
                                           const Renames& renames);

std::vector<WeightItem> dummy_items(const std::vector<TensorRow>& table, uint64_t seed);

}  // namespace perigee::model
