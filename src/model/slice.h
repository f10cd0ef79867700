// What    One rank's share of a model as a configuration of its own, so that one device can run what each device of a cluster
//         runs between two exchanges.
// Owner   model. For benchmarks on random weights: the outputs of a share alone mean nothing.
// Threads Pure functions.
// Errors  One sentence for a word that is no slice and for ranks that do not divide the model.
// Source  Tensor parallelism cuts attention heads, expert, shared and dense widths and the vocabulary; the latent projections,
//         the router, the low-rank query projection, the latent and the indexer stay whole. Expert parallelism keeps whole
//         experts, of which a token meets 1 / ranks of its own on average; the router then has only the rows of those.
#pragma once

#include <string>

#include "base/result.h"
#include "model/config.h"

namespace perigee::model {

struct Slice {
  int64_t ranks = 1;
  bool whole_experts = false;  // ep: attention as tp, experts dealt out whole
  int64_t layers = 0;          // keep only the first ones; 0: all
};

// "tp8", "tp16", "ep16", or "" for the whole model.
Result<Slice> parse_slice(const std::string& word);

Result<Config> slice_config(const Config& config, const Slice& slice);

}  // namespace perigee::model
