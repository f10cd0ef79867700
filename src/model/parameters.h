// What    What can be said about a model from its configuration alone: parameters, tensors, bytes, cache bytes.
// Owner   model.
// Threads Pure functions.
// Errors  None; the configuration was checked before.
// Source  The weight table, and the sizes of cache records in num/records.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/config.h"

namespace perigee::model {

// One choice of cache formats; key is empty for a model without an indexer.
struct TokenBytes {
  std::string latent;
  std::string key;
  int64_t latent_bytes = 0;  // all full-attention layers
  int64_t key_bytes = 0;
  int64_t bytes() const { return latent_bytes + key_bytes; }
};

struct Inspection {
  Config config;
  int64_t tensors = 0;  // of the checkpoint, image tower included
  int64_t bytes = 0;    // of their contents
  int64_t text_tensors = 0;
  int64_t text_bytes = 0;
  int64_t parameters = 0;         // of the text model
  int64_t active_parameters = 0;  // read for one token, without the input embedding
  int64_t vision_tensors = 0;
  int64_t vision_parameters = 0;
  int64_t kda_state_bytes =
      0;  // of one request: FP32 states and BF16 convolution windows, whatever its length
  std::vector<TokenBytes> token_bytes;  // formats that can hold the model's widths
};

Inspection inspect(const Config& config);

std::string inspect_text(const Inspection& inspection);
std::string inspect_json(const Inspection& inspection);  // one JSON object and a line end

}  // namespace perigee::model
