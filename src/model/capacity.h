// What    How much a device's memory holds: rows, tokens and full contexts, from the code that cuts and allocates the rows.
// Owner   model.
// Threads Pure functions.
// Errors  One sentence for ranks that do not divide the model or memory that holds no row.
// Source  cache/layout.h and model/state.h; a rank of tensor parallelism keeps its heads' states and every latent and key, a rank
//         of context parallelism every W-th token of them.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "model/state.h"

namespace perigee::model {

struct CapacityOptions {
  CacheFormats formats;
  int64_t tensor_ranks = 1;
  int64_t context_ranks = 1;     // divides tensor_ranks
  int64_t pool_bytes = 0;        // of the row pool; 0: what device_bytes leave
  int64_t device_bytes = 0;      // of one device
  double utilization = 0.9;      // share of device_bytes that may be used
  int64_t max_model_len = 0;     // 0: the model's
  int64_t max_num_seqs = 64;     // sequences with an open chunk
  int64_t batched_tokens = 2048;  // of a step, for the workspace
};

struct Capacity {
  StateLayout layout;  // of one rank
  int64_t max_model_len = 0;
  int64_t context_ranks = 1;
  int64_t rows = 0;
  int64_t tokens = 0;    // rows x block_tokens x context_ranks
  int64_t rows_of_context = 0;  // of max_model_len tokens, states included
  int64_t contexts = 0;
  // Bytes of one device.
  int64_t pool_bytes = 0;
  int64_t weight_bytes = 0;
  int64_t open_chunk_bytes = 0;
  int64_t workspace_bytes = 0;
};

Result<Capacity> plan_capacity(const Config& config, const CapacityOptions& options);

std::string capacity_text(const Capacity& capacity);
std::string capacity_json(const Capacity& capacity);  // one JSON object and a line end

}  // namespace perigee::model
