// What    The packed cache as bookkeeping: which rows of the pool a running sequence holds, what stays behind for later
//         requests, and what is evicted. Nothing here touches the rows' bytes; the caller turns the answers into copies.
//         A row holds either the attention records of one block of one sequence, or a part (one of `groups`) of a
//         sequence's linear-attention state. States exist at multiples of kStateTokens only. A sequence can be resumed
//         at P when the rows of its first P tokens and a snapshot of the state at P are both there; both are looked up,
//         neither list is derived from the other.
//         A row is free, held (named by a sequence or by the step that is planned), or cached (found through the
//         index, evicted in the order of last use).
// Owner   cache. Used by sched.
// Threads One at a time.
// Errors  check() answers bad options; the rest are bugs and abort.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "cache/hash.h"
#include "cache/lru.h"
#include "cache/prefix_index.h"
#include "cache/rows.h"

namespace perigee::cache {

constexpr int64_t kStateTokens = 16;  // the grid of positions at which a linear-attention state exists

struct CacheOptions {
  int64_t rows = 0;
  int64_t block_tokens = 64;  // tokens of an attention row
  int64_t groups = 1;         // rows of one state
  int64_t match_unit = 16;    // tokens under one key
};

// What a running sequence holds.
struct Holding {
  std::vector<RowId> blocks;  // attention rows, in the order of positions
  std::vector<RowId> states;  // `groups` rows
  int64_t indexed = 0;        // units that the index has been told of
};

// What the pool holds of a prompt.
struct Match {
  int64_t dense = 0;                  // tokens whose attention records are there
  int64_t resume = 0;                 // of these, tokens after which a state is there too
  SnapshotId snapshot = kNoSnapshot;  // the state after `resume` tokens
  std::vector<RowId> rows;            // of the blocks of the first `resume` tokens
};

// Keep: the snapshot, and a half-filled row that others may want, are copied. Consume: they become the sequence's own
// when nobody holds them, so that resuming takes no more rows than the sequence itself.
enum class ResumeMode { kKeep, kConsume };

struct ResumeCost {
  int64_t pinned = 0;  // cached rows that stop being evictable
  int64_t fresh = 0;   // rows to be taken
};

// What has to be copied before a resumed sequence can run; kNoRow and an empty span: nothing.
struct Resumed {
  RowId block_from = kNoRow;
  RowId block_to = kNoRow;
  int64_t block_tokens = 0;
  std::span<const RowId> states_from;
};

struct CacheStats {
  int64_t rows = 0;
  int64_t free = 0;
  int64_t cached = 0;
  int64_t held = 0;
  int64_t snapshots = 0;  // those that can be found
};

class Cache {
 public:
  static Status check(const CacheOptions& options);
  explicit Cache(const CacheOptions& options);

  const CacheOptions& options() const { return options_; }
  CacheStats stats() const;
  int64_t blocks(int64_t tokens) const { return (tokens + options_.block_tokens - 1) / options_.block_tokens; }
  // Rows that can be had without taking them from a sequence.
  int64_t available() const { return rows_.free() + cached_; }

  // The longest prefix of at most `tokens_max` tokens that can be resumed, of the units that the chain has hashed.
  Match match(const KeyChain& chain, int64_t tokens_max) const;
  bool has_snapshot(const Key& key) const { return index_.find_snapshot(key) != kNoSnapshot; }

  ResumeCost resume_cost(const Match& match, ResumeMode mode) const;
  // Fills an empty holding with the first `match.resume` tokens and a private state. The rows must be available.
  // What is copied from stays as it is until end_step().
  Resumed resume(const Match& match, ResumeMode mode, Holding& holding);
  // One more attention row; false when nothing can be evicted for it.
  bool grow(Holding& holding);
  // Makes the units that are complete within the first `tokens` tokens findable. The chain must have hashed them.
  void index(const KeyChain& chain, int64_t tokens, Holding& holding) {
    if ((holding.indexed + 1) * options_.match_unit <= tokens) index_new(chain, tokens, holding);
  }
  // Takes rows for a copy of a sequence's state that this step makes, and returns them; empty when there is no room.
  // The snapshot can be found after end_step().
  std::span<const RowId> stage_snapshot(const Key& key);
  // The planned step has run: its snapshots can be found, and what it copied from is ordinary again.
  void end_step();

  // The sequence of `tokens` tokens ends or waits: what the index knows becomes cached, its last block the first to
  // be evicted; the rest is free. `state_valid` says that the states are those at the last multiple of kStateTokens.
  void release(const KeyChain& chain, int64_t tokens, bool state_valid, Holding& holding);

  // A sentence when rows, names, keys and ages do not agree. `holdings` are those of all sequences.
  Status audit(std::span<const Holding* const> holdings) const;

 private:
  struct Staged {
    SnapshotId id;
    Key key;
  };
  int64_t item_of(SnapshotId id) const { return rows_.count() + id; }  // of the age list; a row's item is the row
  std::span<RowId> rows_of(SnapshotId id) {
    return {&snapshot_rows_[static_cast<size_t>(id * options_.groups)], static_cast<size_t>(options_.groups)};
  }
  std::span<const RowId> rows_of(SnapshotId id) const {
    return {&snapshot_rows_[static_cast<size_t>(id * options_.groups)], static_cast<size_t>(options_.groups)};
  }
  int32_t& pins(SnapshotId id) { return snapshot_pins_[static_cast<size_t>(id)]; }
  int32_t pins(SnapshotId id) const { return snapshot_pins_[static_cast<size_t>(id)]; }

  bool takes_over_block(const Match& match, ResumeMode mode) const;
  bool takes_over_state(const Match& match, ResumeMode mode) const;
  void index_new(const KeyChain& chain, int64_t tokens, Holding& holding);
  void name_block(RowId row);
  void unname_block(RowId row);
  void pin_snapshot(SnapshotId id);
  void unpin_snapshot(SnapshotId id);
  RowId take_row();
  bool evict_oldest();
  // Makes it findable, or frees it when its like can be found already.
  void show_snapshot(SnapshotId id, const Key& key);
  bool donate_state(const Key& key, Holding& holding);
  void free_rows(std::span<const RowId> rows);

  // Parts of audit().
  Status audit_names(std::span<const Holding* const> holdings) const;
  Status audit_places() const;

  CacheOptions options_;
  int64_t units_per_row_;
  Rows rows_;
  PrefixIndex index_;
  LruList lru_;
  int64_t cached_ = 0;                  // rows of the items in lru_
  std::vector<RowId> snapshot_rows_;    // [snapshot, groups]
  std::vector<int32_t> snapshot_pins_;  // copies of the planned step that read it, or make it
  std::vector<SnapshotId> free_snapshots_;
  std::vector<Staged> staged_;
  std::vector<RowId> fenced_rows_;            // half-filled rows that the planned step copies from
  std::vector<SnapshotId> fenced_snapshots_;  // snapshots that it copies from
};

}  // namespace perigee::cache
