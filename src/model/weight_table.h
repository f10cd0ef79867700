// What    The one list of a checkpoint's tensors: names, sizes, types, cuts, destinations. The loader, the audit, dummy
//         weights and every count of parameters and bytes walk this list and know no tensor by name.
// Owner   model.
// Threads Pure functions.
// Errors  None; the configuration was checked before.
// Source  The tensors of the published Kimi K3 and Kimi-Linear checkpoints; the indexer is named as in DeepSeek-V3.2.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "load/safetensors.h"
#include "model/config.h"
#include "model/weights.h"

namespace perigee::model {

// How a tensor is cut when several ranks share a layer.
enum class Shard : uint8_t {
  kReplicated,
  kRows,     // by output rows
  kColumns,  // by input columns
  kHeads,    // by output rows, whole heads
  kExperts,  // whole experts
};

// How the bytes of a file become what operations read.
enum class Pack : uint8_t {
  kNone,          // counted, never loaded
  kVector,        // copied as it is
  kMatrix,        // rows of a BF16 matrix
  kCodes,         // rows of an MXFP4 matrix; the next row of the table holds their scales
  kScales,        // taken together with the codes
  kHeadMatrices,  // kv_b_proj: a transposed key matrix and a value matrix for each head
  kMixerNorm,     // times the next row of the table: the F32 query of an AttnRes mixer
  kMixerQuery,    // taken together with the norm
};

// The distribution of dummy weights.
enum class Fill : uint8_t { kLinear, kEmbedding, kNorm, kBias, kALog, kDtBias, kConv };

struct TensorRow {
  std::string name;    // without prefix; {L} stands for the layer, {E} for the expert
  int64_t layer = -1;  // -1: outside the layers
  int64_t copies = 1;  // experts
  load::FileDType dtype = load::FileDType::kBF16;
  std::vector<int64_t> dims;  // on disk
  bool any_shape = false;     // at least n values in any shape (A_log)
  bool alias = false;         // another row's tensor a second time (tied embeddings)

  Shard shard = Shard::kReplicated;
  Pack pack = Pack::kNone;
  int64_t n = 0;           // rows that this tensor fills in its destination
  int64_t k = 0;           // width of a row; 0: a vector
  int64_t row_offset = 0;  // of the first of them
  int64_t rows_total = 0;  // of the destination
  Weight& (*matrix)(Weights&, int64_t layer, int64_t expert) = nullptr;
  Tensor& (*tensor)(Weights&, int64_t layer) = nullptr;

  int64_t parameters = 0;  // of one copy; scales of codes are none
  int64_t active = 0;      // read for one token, all copies together
  Fill fill = Fill::kLinear;
  double gain = 0.7;  // standard deviation of an output for inputs of deviation 1

  int64_t bytes() const;  // on disk, of one copy
};

// The text model's rows in the order of a forward pass.
std::vector<TensorRow> weight_table(const Config& config);

// Image tower and projector, counted and skipped.
std::vector<TensorRow> vision_table(const Config& config);

// The name with its layer and expert filled in.
std::string expand(const std::string& pattern, int64_t layer, int64_t expert);

}  // namespace perigee::model
