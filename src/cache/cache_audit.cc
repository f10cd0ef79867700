#include "cache/cache.h"

namespace perigee::cache {
namespace {

template <class... Args>
Error fault(fmt::format_string<Args...> text, Args&&... args) {
  return {ErrorCode::kInternal, fmt::format(text, std::forward<Args>(args)...)};
}

}  // namespace

Status Cache::audit(std::span<const Holding* const> holdings) const {
  if (const Status s = lru_.audit(); !s.ok()) return s;
  if (const Status s = index_.audit(); !s.ok()) return s;
  if (const Status s = audit_names(holdings); !s.ok()) return s;
  return audit_places();
}

// Every row is named as often as sequences, snapshots and fences name it; a state's row exactly once.
Status Cache::audit_names(std::span<const Holding* const> holdings) const {
  std::vector<int32_t> names(static_cast<size_t>(rows_.count()));
  std::vector<uint8_t> is_state(names.size());
  const auto name = [&](RowId row, bool state) {
    ++names[static_cast<size_t>(row)];
    is_state[static_cast<size_t>(row)] |= state ? 1 : 0;
  };
  for (const Holding* h : holdings) {
    for (const RowId row : h->blocks) name(row, false);
    for (const RowId row : h->states) name(row, true);
  }
  for (const RowId row : fenced_rows_) name(row, false);
  std::vector<uint8_t> used(snapshot_pins_.size(), 1);
  for (const SnapshotId id : free_snapshots_) used[static_cast<size_t>(id)] = 0;
  for (size_t id = 0; id < used.size(); ++id) {
    if (used[id] == 0) continue;
    for (const RowId row : rows_of(static_cast<SnapshotId>(id))) name(row, true);
  }
  for (size_t row = 0; row < names.size(); ++row) {
    const auto id = static_cast<RowId>(row);
    if (names[row] != rows_.refs(id))
      return fault("row {} counts {} names and has {}", row, rows_.refs(id), names[row]);
    if (is_state[row] != 0 && names[row] != 1)
      return fault("row {} holds a state and is named {} times", row, names[row]);
    if (is_state[row] != 0 && index_.keys_of(id) != 0) return fault("row {} holds a state and has keys of tokens", row);
  }
  return {};
}

// Every row is free, cached or held, and the counters say how many.
Status Cache::audit_places() const {
  std::vector<uint8_t> is_free(static_cast<size_t>(rows_.count()));
  for (const RowId row : rows_.free_rows()) {
    if (is_free[static_cast<size_t>(row)]++ != 0) return fault("row {} is twice in the free list", row);
    if (rows_.refs(row) != 0) return fault("row {} is free and named", row);
    if (index_.keys_of(row) != 0) return fault("row {} is free and has keys", row);
    if (lru_.contains(row)) return fault("row {} is free and in the age list", row);
  }
  int64_t cached = 0;
  int64_t held = 0;
  for (int64_t row = 0; row < rows_.count(); ++row) {
    const auto id = static_cast<RowId>(row);
    if (lru_.contains(row)) {
      ++cached;
      if (rows_.refs(id) != 0) return fault("row {} is in the age list and named", row);
      if (index_.keys_of(id) == 0) return fault("row {} is cached and cannot be found", row);
    } else if (rows_.refs(id) > 0) {
      ++held;
    } else if (is_free[static_cast<size_t>(row)] == 0) {
      return fault("row {} is neither free nor cached nor held", row);
    }
  }
  std::vector<uint8_t> staged(snapshot_pins_.size());
  for (const Staged& s : staged_) staged[static_cast<size_t>(s.id)] = 1;
  std::vector<uint8_t> unused(snapshot_pins_.size());
  for (const SnapshotId id : free_snapshots_) unused[static_cast<size_t>(id)] = 1;
  for (size_t s = 0; s < snapshot_pins_.size(); ++s) {
    const auto id = static_cast<SnapshotId>(s);
    const bool found = index_.has_snapshot(id);
    if (found == (staged[s] != 0 || unused[s] != 0)) return fault("snapshot {} is of two kinds or of none", s);
    if (lru_.contains(item_of(id)) != (found && pins(id) == 0))
      return fault("snapshot {} has a wrong place in the age list", s);
    if (lru_.contains(item_of(id))) {
      cached += options_.groups;
      held -= options_.groups;
    }
  }
  const CacheStats s = stats();
  if (cached != s.cached || held != s.held) {
    return fault("rows: {} free, {} cached and {} held are counted; {} cached and {} held are there", s.free, s.cached,
                 s.held, cached, held);
  }
  return {};
}

}  // namespace perigee::cache
