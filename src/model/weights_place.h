// What    Decides where each weight lies: in the arena, or in the map of the file on the reference device.
// Owner   model; a part of load_weights.
// Threads One.
// Errors  None.
#pragma once

#include <vector>

#include "model/weight_items.h"
#include "model/weights.h"

namespace perigee::model {

struct Placement {
  size_t bytes = 0;             // of the arena
  size_t mapped_bytes = 0;      // of the files, read in place
  std::vector<uint8_t> mapped;  // by item: 1 when its bytes are read in place
};

// Sets every matrix and tensor of `weights`. Without an arena it only counts, and the same call with an arena of that
// size follows.
Placement place_weights(tensor::Device device, const Config& config,
                        const std::vector<WeightItem>& items, tensor::Arena* arena,
                        Weights& weights);

}  // namespace perigee::model
