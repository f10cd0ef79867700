// What    What a running sequence remembers: latents and index keys per token, KDA states, open chunks.
// Owner   model. One pool per engine. Who holds which row is decided elsewhere: by the scheduler for a server, by the order of
//         their creation for the sequences of for_lengths().
// Threads One thread at a time; rows of different sequences may be read and written side by side.
// Errors  Result when memory is refused; a row or slot that does not exist is a bug of the caller.
//
// Rows are cut as cache/layout.h says: an attention row holds the latent pages of all MLA layers for one block of tokens, then
// their index key pages; a state row holds, for each KDA layer of its group, the recurrent state at the start of the open chunk
// and the convolution window there. So a state row is complete by itself at every multiple of 16 tokens. The open chunk's own
// rows (ops/kda, ops/conv1d) stand in the sequence's slot, outside of the rows.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "cache/layout.h"
#include "model/config.h"
#include "num/records.h"
#include "ops/kda/kda.h"
#include "tensor/arena.h"
#include "tensor/mover.h"
#include "tensor/parts.h"

namespace perigee::model {

struct CacheFormats {
  LatentFormat latent = LatentFormat::kBf16;
  KeyFormat key = KeyFormat::kBf16;
};

// Where everything stands inside rows and slots. MLA and KDA layers are counted apart, each from 0.
struct StateLayout {
  tensor::Device device = tensor::Device::kCpu;
  CacheFormats formats;
  cache::Layout rows;
  int64_t latent_bytes = 0;  // per token and layer
  int64_t key_bytes = 0;     // per token and layer, 0 without an indexer
  std::vector<int64_t> latent_offset;  // of each MLA layer in an attention row
  std::vector<int64_t> key_offset;
  std::vector<int64_t> state_group;   // of each KDA layer: which of the sequence's state rows
  std::vector<int64_t> state_offset;  // and where in it
  int64_t recurrent_bytes = 0;        // one layer, before its conv window
  int64_t state_groups = 0;
  std::vector<int64_t> group_bytes;  // of each state row
  ops::KdaParams kda;
  int64_t kda_open_bytes = 0;   // one layer, open chunk of the state
  int64_t conv_open_bytes = 0;  // one layer, open chunk of the convolution
  int64_t slot_bytes = 0;       // all KDA layers of one sequence

  int64_t mla_layers() const { return static_cast<int64_t>(latent_offset.size()); }
  int64_t kda_layers() const { return static_cast<int64_t>(state_group.size()); }
  int64_t block_tokens() const { return rows.block_tokens; }
};

// The layers of a model as the row planner sees them.
std::vector<cache::LayerSpec> layer_specs(const Config& config, tensor::Device device, CacheFormats formats);
StateLayout make_state_layout(const Config& config, tensor::Device device, CacheFormats formats);

class StatePool;

// One sequence. `length` tokens have been through the model; the next step appends after them.
class Sequence {
 public:
  int64_t length() const { return length_; }
  void advance(int64_t tokens) { length_ += tokens; }
  int64_t tokens_max() const { return static_cast<int64_t>(blocks_.size()) * layout_->block_tokens(); }
  CacheFormats formats() const { return layout_->formats; }

  std::span<const int32_t> blocks() const { return blocks_; }
  std::span<const int32_t> states() const { return states_; }
  const StatePool& pool() const { return *pool_; }
  // Its next `rows` tokens as rows [row_begin, row_begin + rows) of a step.
  tensor::Part part(int64_t row_begin, int64_t rows) const {
    return {row_begin, rows, length_, blocks_.data(), states_.data(), slot_};
  }

  // Forgets all tokens.
  void reset();

 private:
  friend class StatePool;

  const StateLayout* layout_ = nullptr;
  StatePool* pool_ = nullptr;
  int64_t slot_ = 0;
  std::span<const int32_t> blocks_;  // attention row of each block
  std::span<const int32_t> states_;  // state row of each group
  int64_t length_ = 0;
};

class StatePool {
 public:
  // `rows` rows, all zero, and room for the open chunks of `slots` sequences.
  static Result<std::unique_ptr<StatePool>> create(const Config& config, const tensor::Mover& mover, CacheFormats formats,
                                                   int64_t rows, int64_t slots);
  // Room for sequences of the given greatest lengths, all at once; sequence(i) is the i-th.
  static Result<std::unique_ptr<StatePool>> for_lengths(const Config& config, const tensor::Mover& mover,
                                                        CacheFormats formats, const std::vector<int64_t>& tokens_max);

  const StateLayout& layout() const { return layout_; }
  // Unlike an address never used again.
  uint64_t serial() const { return serial_; }
  // Bytes held for rows and slots.
  size_t bytes() const { return memory_.capacity(); }
  int64_t rows() const { return rows_; }

  // A sequence of `length` tokens over rows that somebody else manages; the spans must outlive its use.
  Sequence bind(std::span<const int32_t> blocks, std::span<const int32_t> states, int64_t slot, int64_t length);

  // Where a layer finds what it remembers; `layer` counts MLA (KDA) layers only.
  tensor::PagePlace latents(int64_t layer) const;
  tensor::PagePlace keys(int64_t layer) const;
  tensor::StatePlace kda_state(int64_t layer) const;
  tensor::StatePlace conv_window(int64_t layer) const;
  tensor::SlotPlace kda_open(int64_t layer) const;
  tensor::SlotPlace conv_open(int64_t layer) const;

  void clear_states(int32_t row);
  void copy_states(int32_t from, int32_t to);
  // The records of the first `tokens` tokens of a block.
  void copy_tokens(int32_t from, int32_t to, int64_t tokens);

  // tensor::Arena::prefault of all rows and slots.
  void prefault() { memory_.prefault(); }

  Sequence& sequence(size_t i) { return sequences_[i]; }
  size_t size() const { return sequences_.size(); }

 private:
  StatePool() = default;
  std::byte* row(int32_t i);

  std::byte* slots_base() const { return base_ + rows_ * layout_.rows.row_bytes; }

  StateLayout layout_;
  uint64_t serial_ = 0;
  tensor::Mover mover_;
  tensor::Arena memory_;
  std::byte* base_ = nullptr;
  int64_t rows_ = 0;
  int64_t slots_ = 0;
  std::vector<Sequence> sequences_;
  std::vector<std::vector<int32_t>> tables_;  // of sequences_: blocks, then states
};

}  // namespace perigee::model
