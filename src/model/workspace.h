// What    The buffers of one forward pass, planned once for the largest step and cut to the rows of each step.
// Owner   model/decoder. All sizes stand in workspace.cc's table.
// Threads One step at a time.
// Errors  Result when memory is refused.
#pragma once

#include <array>

#include <cstdint>

#include "base/result.h"
#include "model/config.h"
#include "ops/context.h"
#include "tensor/arena.h"

namespace perigee::model {

using tensor::Tensor;

// [T, width] unless said; "act" and "real" as in ops/context.h. Absent parts of a model have width 0.
struct Workspace {
  std::vector<Tensor> residual;  // act, D: the AttnRes bank and the live accumulator take turns in them
  Tensor mixed;                  // act, D
  Tensor normed;                 // act, D
  Tensor delta;                  // act, D: output of a sub-layer
  Tensor delta2;                 // act, D: second summand of the latent MoE

  Tensor kda_in, kda_qkv, kda_decay, kda_gate;  // act
  Tensor kda_out;                               // real, P
  Tensor kda_normed;                            // act, P

  Tensor mla_in, mla_q_normed, mla_q, mla_q_absorbed, mla_latent, mla_out_latent, mla_out;  // act
  Tensor mla_lse;                                                                          // real, H
  Tensor index_q, index_key;                                                               // act
  Tensor mla_partial;    // f32, what ops/mla says; only on a GPU
  Tensor index_scores;   // act, [rows of a block, longest context]
  Tensor selected;       // i32, [T, X]
  Tensor selected_count; // i32, [T]
  Tensor selected_places;  // I32 [T, X], physical rows; only on a GPU

  Tensor ffn_hidden;                                // real on a GPU, act elsewhere: dense and shared gate and up
  Tensor ffn_act;                                   // act
  Tensor router_logits;                             // real, E
  Tensor expert_ids;                                // i32, A
  Tensor expert_weights;                            // real, A
  Tensor expert_offsets, expert_source, expert_place;  // i32: [E+1], [T*A], [T, A]
  Tensor latent_in;                                 // act, Z
  Tensor expert_hidden;                             // [T*A, 2F], as ffn_hidden
  Tensor expert_act;                                // act: [T*A, F]
  Tensor expert_out;                                // real: [T*A, Z]
  Tensor combined, combined_normed;                 // act, Z

  int64_t rows_max = 0;
  std::array<int64_t, 4> mla_partial_dims = {};
  int64_t score_rows = 0;  // rows of index_scores
  tensor::Arena arena;

  // Bytes that create() takes.
  static int64_t bytes(const Config& config, tensor::Device device, int64_t rows_max, int64_t context_max);
  // Buffers for steps of up to `rows_max` tokens over contexts of up to `context_max`.
  static Result<Workspace> create(const Config& config, tensor::Device device, int64_t rows_max,
                                  int64_t context_max);
};

}  // namespace perigee::model
