// What    What a running sequence remembers: latents and index keys per token, KDA states, conv windows.
// Owner   model. One pool per engine; sequences are created from it and hand their rows back when destroyed.
// Threads One thread at a time.
// Errors  Result when memory is refused; running out of reserved rows is a bug of the caller.
//
// Per-token records of all MLA layers share pool rows: row = for each MLA layer its latent pages, then for each its key
// pages (tensor/page_view.h). Per-sequence states of all KDA layers stand together in one piece: for each KDA layer the
// state at the start of its open chunk, the open chunk's rows, the conv window.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.h"
#include "model/config.h"
#include "num/records.h"
#include "ops/kda/kda.h"
#include "tensor/arena.h"
#include "tensor/page_view.h"

namespace perigee::model {

struct CacheFormats {
  LatentFormat latent = LatentFormat::kBf16;
  KeyFormat key = KeyFormat::kBf16;
};

// Where everything stands inside a row and inside a sequence's KDA piece.
struct StateLayout {
  tensor::Device device = tensor::Device::kCpu;
  CacheFormats formats;
  int64_t block_tokens = 0;
  int64_t latent_bytes = 0;  // per token and layer
  int64_t key_bytes = 0;     // per token and layer, 0 without an indexer
  int64_t mla_layers = 0;
  int64_t kda_layers = 0;
  int64_t row_bytes = 0;
  ops::KdaParams kda;
  int64_t kda_state_bytes = 0;   // one layer, recurrent state
  int64_t kda_open_bytes = 0;    // one layer, open chunk
  int64_t kda_window_bytes = 0;  // one layer, conv window
  int64_t sequence_bytes = 0;    // all KDA layers of one sequence

  int64_t kda_layer_bytes() const { return kda_state_bytes + kda_open_bytes + kda_window_bytes; }
};

StateLayout make_state_layout(const Config& config, tensor::Device device, CacheFormats formats);

class StatePool;

// One sequence. `length` tokens have been through the model; the next step appends after them.
class Sequence {
 public:
  Sequence(Sequence&& other) noexcept = default;
  Sequence& operator=(Sequence&& other) noexcept = default;

  int64_t length() const { return length_; }
  void advance(int64_t tokens) { length_ += tokens; }
  int64_t tokens_max() const { return tokens_max_; }
  CacheFormats formats() const { return layout_->formats; }

  // `layer` counts MLA (KDA) layers only.
  tensor::PageView latents(int64_t layer) const;
  tensor::PageView keys(int64_t layer) const;
  void* kda_state(int64_t layer) const;
  void* kda_open(int64_t layer) const;
  void* conv_window(int64_t layer) const;

  // Forgets all tokens.
  void reset();

 private:
  friend class StatePool;
  Sequence() = default;
  tensor::PageView pages(int64_t offset, int64_t token_bytes) const;

  const StateLayout* layout_ = nullptr;
  std::byte* pool_ = nullptr;
  std::byte* kda_ = nullptr;
  std::vector<int32_t> rows_;
  int64_t tokens_max_ = 0;
  int64_t length_ = 0;
};

class StatePool {
 public:
  // Room for sequences of the given greatest lengths, all at once.
  static Result<std::unique_ptr<StatePool>> create(const Config& config, tensor::Device device,
                                                   CacheFormats formats,
                                                   const std::vector<int64_t>& tokens_max);

  const StateLayout& layout() const { return layout_; }
  // Bytes held for rows and KDA states.
  size_t bytes() const { return memory_.capacity(); }
  // The i-th sequence; it lives as long as the pool.
  Sequence& sequence(size_t i) { return sequences_[i]; }
  size_t size() const { return sequences_.size(); }

 private:
  StatePool() = default;

  StateLayout layout_;
  tensor::Arena memory_;
  std::vector<Sequence> sequences_;
};

}  // namespace perigee::model
