#include "cache/cache.h"

#include <algorithm>
#include <bit>

namespace perigee::cache {

Status Cache::check(const CacheOptions& o) {
  const auto power_of_two = [](int64_t n) { return n > 0 && std::has_single_bit(static_cast<uint64_t>(n)); };
  if (!power_of_two(o.block_tokens) || o.block_tokens < 64) {
    return invalid_argument("block_tokens is {}, a power of two of at least 64 is needed", o.block_tokens);
  }
  if (!power_of_two(o.match_unit) || o.match_unit < kStateTokens || o.match_unit > o.block_tokens) {
    return invalid_argument("--prefix-match-unit is {}, a power of two from {} to the block's {} tokens is needed",
                            o.match_unit, kStateTokens, o.block_tokens);
  }
  if (o.groups < 1) return invalid_argument("groups is {}, a state takes at least one row", o.groups);
  if (o.rows < o.groups + 1) {
    return resource_exhausted("the cache has {} rows, one sequence needs at least {}: give it more memory", o.rows,
                              o.groups + 1);
  }
  const int64_t ids_max = int64_t{1} << 30;  // ids of keys are 32-bit numbers
  if (o.rows > ids_max / (o.block_tokens / o.match_unit)) {
    return out_of_range("the cache of {} rows would have more than {} keys: use a larger --prefix-match-unit", o.rows,
                        ids_max);
  }
  return {};
}

Cache::Cache(const CacheOptions& options)
    : options_(options),
      units_per_row_(options.block_tokens / options.match_unit),
      rows_(options.rows),
      index_(options.rows, units_per_row_, options.rows / options.groups),
      lru_(options.rows + options.rows / options.groups) {
  CHECK(check(options).ok());
  const int64_t snapshots = options.rows / options.groups;
  snapshot_rows_.assign(static_cast<size_t>(snapshots * options.groups), kNoRow);
  snapshot_pins_.assign(static_cast<size_t>(snapshots), 0);
  for (int64_t id = snapshots; id-- > 0;) free_snapshots_.push_back(static_cast<SnapshotId>(id));
}

CacheStats Cache::stats() const {
  return {rows_.count(), rows_.free(), cached_, rows_.count() - rows_.free() - cached_, index_.snapshots()};
}

Match Cache::match(const KeyChain& chain, int64_t tokens_max) const {
  Match m;
  const std::span<const Key> keys = chain.keys();
  const int64_t units = chain.units();
  const auto find_row = [&](int64_t unit) { return index_.find_row(keys[static_cast<size_t>(unit)]); };
  // From a block's end backwards: a row that stores its last unit stores all of it, whoever holds the earlier keys.
  for (int64_t begin = 0; begin < units && m.dense == begin * options_.match_unit; begin += units_per_row_) {
    for (int64_t u = std::min(begin + units_per_row_, units); u-- > begin;) {
      const RowId row = find_row(u);
      if (row == kNoRow) continue;
      m.rows.push_back(row);
      m.dense = (u + 1) * options_.match_unit;
      break;
    }
  }
  for (int64_t u = std::min(m.dense, tokens_max) / options_.match_unit; u > 0 && index_.snapshots() > 0; --u) {
    m.snapshot = index_.find_snapshot(keys[static_cast<size_t>(u - 1)]);
    if (m.snapshot == kNoSnapshot) continue;
    m.resume = u * options_.match_unit;
    break;
  }
  m.rows.resize(static_cast<size_t>(blocks(m.resume)));
  if (m.resume % options_.block_tokens != 0) {
    // The row whose sequence had this very end is better than one that goes on: it may be taken over.
    const RowId row = find_row(m.resume / options_.match_unit - 1);
    if (row != kNoRow) m.rows.back() = row;
  }
  return m;
}

bool Cache::takes_over_block(const Match& match, ResumeMode mode) const {
  const RowId row = match.rows.back();
  if (rows_.refs(row) > 0) return false;
  const int64_t unit = match.resume % options_.block_tokens / options_.match_unit;
  return mode == ResumeMode::kConsume || !index_.has_unit_from(row, unit);
}

bool Cache::takes_over_state(const Match& match, ResumeMode mode) const {
  return mode == ResumeMode::kConsume && pins(match.snapshot) == 0;
}

ResumeCost Cache::resume_cost(const Match& match, ResumeMode mode) const {
  ResumeCost cost;
  cost.fresh = options_.groups;
  if (match.resume == 0) return cost;
  for (const RowId row : match.rows) cost.pinned += rows_.refs(row) == 0 ? 1 : 0;
  if (match.resume % options_.block_tokens != 0 && !takes_over_block(match, mode)) ++cost.fresh;
  if (pins(match.snapshot) == 0) cost.pinned += options_.groups;
  if (takes_over_state(match, mode)) cost.fresh -= options_.groups;
  return cost;
}

Resumed Cache::resume(const Match& match, ResumeMode mode, Holding& holding) {
  CHECK(holding.blocks.empty() && holding.states.empty());
  Resumed out;
  holding.indexed = match.resume / options_.match_unit;
  bool private_state = false;
  if (match.resume > 0) {
    const int64_t tail = match.resume % options_.block_tokens;
    const bool copy_block = tail != 0 && !takes_over_block(match, mode);
    const bool copy_state = !takes_over_state(match, mode);
    // Everything that is read is pinned before anything is evicted.
    for (const RowId row : match.rows) name_block(row);
    if (copy_state) {
      pin_snapshot(match.snapshot);
      fenced_snapshots_.push_back(match.snapshot);
      out.states_from = rows_of(match.snapshot);
    } else {
      lru_.remove(item_of(match.snapshot));
      cached_ -= options_.groups;
      index_.remove_snapshot(match.snapshot);
      free_snapshots_.push_back(match.snapshot);
      const std::span<const RowId> rows = rows_of(match.snapshot);
      holding.states.assign(rows.begin(), rows.end());
      private_state = true;
    }
    holding.blocks = match.rows;
    if (copy_block) {
      out.block_from = match.rows.back();
      out.block_to = take_row();
      out.block_tokens = tail;
      CHECK_NE(out.block_to, kNoRow);
      fenced_rows_.push_back(out.block_from);
      holding.blocks.back() = out.block_to;
    } else if (tail != 0) {
      index_.remove_units_from(match.rows.back(), tail / options_.match_unit);
    }
  }
  for (int64_t g = 0; g < options_.groups && !private_state; ++g) {
    holding.states.push_back(take_row());
    CHECK_NE(holding.states.back(), kNoRow);
  }
  return out;
}

bool Cache::grow(Holding& holding) {
  const RowId row = take_row();
  if (row == kNoRow) return false;
  holding.blocks.push_back(row);
  return true;
}

void Cache::index_new(const KeyChain& chain, int64_t tokens, Holding& holding) {
  const int64_t units = tokens / options_.match_unit;
  CHECK_LE(units, chain.units());
  for (int64_t u = holding.indexed; u < units; ++u) {
    const RowId row = holding.blocks[static_cast<size_t>(u / units_per_row_)];
    index_.add_unit(row, u % units_per_row_, chain.keys()[static_cast<size_t>(u)]);
  }
  holding.indexed = units;
}

std::span<const RowId> Cache::stage_snapshot(const Key& key) {
  if (available() < options_.groups) return {};
  std::vector<RowId> taken;
  for (int64_t g = 0; g < options_.groups; ++g) taken.push_back(take_row());
  const SnapshotId id = free_snapshots_.back();  // after the rows: eviction may have put one there
  free_snapshots_.pop_back();
  std::copy(taken.begin(), taken.end(), rows_of(id).begin());
  ++pins(id);
  staged_.push_back({id, key});
  return rows_of(id);
}

void Cache::end_step() {
  for (const Staged& s : staged_) {
    --pins(s.id);
    show_snapshot(s.id, s.key);
  }
  for (const SnapshotId id : fenced_snapshots_) unpin_snapshot(id);
  for (const RowId row : fenced_rows_) unname_block(row);
  staged_.clear();
  fenced_snapshots_.clear();
  fenced_rows_.clear();
}

void Cache::release(const KeyChain& chain, int64_t tokens, bool state_valid, Holding& holding) {
  index(chain, tokens, holding);
  const int64_t at = tokens / kStateTokens * kStateTokens;
  // The tail is the oldest: without it the rest is still a prefix, without the rest it is nothing.
  if (!state_valid || at == 0 || at % options_.match_unit != 0 || !donate_state(chain.at(at), holding)) {
    for (const RowId row : holding.states) rows_.unname(row);
    free_rows(holding.states);
  }
  for (size_t b = holding.blocks.size(); b-- > 0;) unname_block(holding.blocks[b]);
  holding.blocks.clear();
  holding.states.clear();
  holding.indexed = 0;
}

bool Cache::donate_state(const Key& key, Holding& holding) {
  if (const SnapshotId known = index_.find_snapshot(key); known != kNoSnapshot) {
    if (pins(known) == 0) {
      lru_.remove(item_of(known));
      lru_.push_youngest(item_of(known));
    }
    return false;
  }
  CHECK(!free_snapshots_.empty());
  const SnapshotId id = free_snapshots_.back();
  free_snapshots_.pop_back();
  std::copy(holding.states.begin(), holding.states.end(), rows_of(id).begin());
  show_snapshot(id, key);
  return true;
}

void Cache::show_snapshot(SnapshotId id, const Key& key) {
  if (index_.add_snapshot(id, key)) {
    lru_.push_youngest(item_of(id));
    cached_ += options_.groups;
    return;
  }
  for (const RowId row : rows_of(id)) rows_.unname(row);
  free_rows(rows_of(id));
  free_snapshots_.push_back(id);
}

void Cache::free_rows(std::span<const RowId> rows) {
  for (const RowId row : rows) rows_.put_back(row);
}

void Cache::name_block(RowId row) {
  if (rows_.refs(row) == 0) {
    lru_.remove(row);
    --cached_;
  }
  rows_.name(row);
}

void Cache::unname_block(RowId row) {
  if (rows_.unname(row) > 0) return;
  if (index_.keys_of(row) == 0) {
    rows_.put_back(row);
    return;
  }
  lru_.push_youngest(row);
  ++cached_;
}

void Cache::pin_snapshot(SnapshotId id) {
  if (pins(id)++ > 0) return;
  lru_.remove(item_of(id));
  cached_ -= options_.groups;
}

void Cache::unpin_snapshot(SnapshotId id) {
  if (--pins(id) > 0) return;
  lru_.push_youngest(item_of(id));
  cached_ += options_.groups;
}

RowId Cache::take_row() {
  while (rows_.free() == 0) {
    if (!evict_oldest()) return kNoRow;
  }
  return rows_.take();
}

bool Cache::evict_oldest() {
  if (lru_.empty()) return false;
  const int64_t item = lru_.oldest();
  lru_.remove(item);
  if (item < rows_.count()) {
    index_.remove_units_from(static_cast<RowId>(item), 0);
    rows_.put_back(static_cast<RowId>(item));
    --cached_;
    return true;
  }
  const auto id = static_cast<SnapshotId>(item - rows_.count());
  index_.remove_snapshot(id);
  for (const RowId row : rows_of(id)) rows_.unname(row);
  free_rows(rows_of(id));
  cached_ -= options_.groups;
  free_snapshots_.push_back(id);
  return true;
}

}  // namespace perigee::cache
