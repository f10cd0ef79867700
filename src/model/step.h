// What    The work of one forward pass: new tokens of several sequences, one after the other in the rows of the step.
// Owner   model. Made by the engine, read by the decoder.
// Threads Plain data.
// Errors  None.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/state.h"

namespace perigee::model {

struct StepPart {
  Sequence* sequence = nullptr;
  int64_t row_begin = 0;  // first row of the step that belongs to this sequence
  int64_t rows = 0;       // its new tokens, at positions sequence->length() and on
};

struct Step {
  std::vector<int32_t> ids;  // [T]
  std::vector<StepPart> parts;

  int64_t rows() const { return static_cast<int64_t>(ids.size()); }
  // Appends the next tokens of a sequence; a sequence stands at most once in a step.
  void append(Sequence* sequence, std::span<const int32_t> tokens) {
    parts.push_back({sequence, rows(), static_cast<int64_t>(tokens.size())});
    ids.insert(ids.end(), tokens.begin(), tokens.end());
  }
};

}  // namespace perigee::model
