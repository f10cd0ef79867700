// What    The weights of one model as the forward pass reads them; fused projections are one matrix.
// Owner   model. Filled by load_weights; frozen afterwards.
// Threads Read-only after loading.
// Errors  load_weights returns one sentence that names the file and the tensor.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "load/safetensors.h"
#include "model/config.h"
#include "ops/context.h"
#include "tensor/arena.h"
#include "tensor/tensor.h"
#include "tensor/weight.h"

namespace perigee::model {

using tensor::Tensor;
using tensor::Weight;

struct KdaWeights {
  Weight in;           // rows: q P | k P | v P | gate P (or g_a K when low-rank) | f_a K | b H, in this order
  Weight f_b;          // [P, K]
  Weight g_b;          // [P, K], low-rank gate only
  Tensor conv;         // [3P, conv_width] f32: q | k | v
  Tensor a_log;        // [>= H] f32
  Tensor dt_bias;      // [P] f32
  Tensor out_norm;     // [K] f32
  Weight out;          // [D, P]
};

struct IndexerWeights {
  Weight q;            // [I*J, q_lora]
  Tensor key_norm;     // [J] f32
  Tensor key_bias;     // [J] f32
};

struct MlaWeights {
  // Rows: q_a (or whole q_proj if q_lora == 0) | kv_a C+r | gate H*v | index key J | index head weights I.
  Weight in;
  Tensor q_norm;       // [q_lora] bf16
  Tensor kv_norm;      // [C] bf16
  Weight q_b;          // [H*(nope+r), q_lora]
  std::vector<Weight> key_up;    // H x [C, nope]: transposed k_nope rows of kv_b_proj (query absorption)
  std::vector<Weight> value_up;  // H x [v, C]: v rows of kv_b_proj
  Weight out;          // [D, H*v]
  IndexerWeights index;
};

struct DenseWeights {
  Weight gate_up;      // [2F, D]: gate | up
  Weight down;         // [D, F]
};

struct MoeWeights {
  Weight router;       // [E, D]
  Tensor router_bias;  // [E] f32
  Weight latent_down;  // [Z, D], latent only
  Tensor latent_norm;  // [Z] bf16, latent only
  Weight latent_up;    // [D, Z], latent only
  std::vector<Weight> gate_up;  // E x [2F, Z]: w1 | w3
  std::vector<Weight> down;     // E x [Z, F]: w2
  DenseWeights shared;
};

// One AttnRes mixer: norm weight times query, both BF16, so the product is exact in FP32.
struct LayerWeights {
  Tensor input_norm;   // [D] bf16
  Tensor post_norm;    // [D] bf16
  Tensor attn_res;     // [D] f32, only with AttnRes
  Tensor mlp_res;      // [D] f32, only with AttnRes
  KdaWeights kda;
  MlaWeights mla;
  DenseWeights dense;
  MoeWeights moe;
};

struct Weights {
  Tensor embed;        // [O, D] bf16
  Weight head;         // [O, D]
  Tensor final_norm;   // [D] bf16
  Tensor final_res;    // [D] f32, only with AttnRes
  std::vector<LayerWeights> layers;

  size_t bytes = 0;    // bytes held in memory for weights (mapped bytes on the reference device)
  tensor::Arena arena;
  std::vector<load::SafetensorsFile> files;  // kept open while weights point into them
};

struct LoadOptions {
  // kSafetensors maps the files; kFastSafetensors reads what memory does not hold yet in parallel and past the system's cache
  // (load/reader.h); kAuto: the latter for a GPU.
  enum class Source { kAuto, kSafetensors, kFastSafetensors, kDummy } source = Source::kAuto;
  uint64_t seed = 0;  // of dummy weights
  std::function<void(size_t done, size_t total)> progress;  // bytes; may be empty
};

// Of all text weights as the files have them.
int64_t weight_bytes(const Config& config);

// `folder` holds config.json and the shards; every row of the weight table is filled exactly once, every tensor of the
// files is consumed or on the ignore list (vision_tower., mm_projector., MTP layers), or the load fails.
Result<Weights> load_weights(const ops::Context& context, const Config& config, const std::string& folder,
                             const LoadOptions& options);

}  // namespace perigee::model
