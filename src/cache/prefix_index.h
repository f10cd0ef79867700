// What    Finds what the pool holds of a prefix: attention rows by the key of each unit they store, snapshots of the
//         linear-attention state by the key of the prefix they stand for.
//         A row stores one sequence's block from its start, so whoever finds unit i of a block has units 0 to i of it.
// Owner   cache.
// Threads One at a time.
// Errors  Misuse is a bug and aborts.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/key_table.h"
#include "cache/rows.h"

namespace perigee::cache {

using SnapshotId = int32_t;
constexpr SnapshotId kNoSnapshot = -1;

class PrefixIndex {
 public:
  PrefixIndex(int64_t rows, int64_t units_per_row, int64_t snapshots)
      : units_(rows * units_per_row),
        snapshots_(snapshots),
        keys_of_row_(static_cast<size_t>(rows)),
        units_per_row_(units_per_row) {}

  RowId find_row(const Key& key) const {
    const int32_t id = units_.find(key);
    return id < 0 ? kNoRow : static_cast<RowId>(id / units_per_row_);
  }
  // Says that `row` stores the unit; when another row was first, that one stays and this is false.
  bool add_unit(RowId row, int64_t unit_of_row, const Key& key) {
    if (!units_.insert(row * units_per_row_ + unit_of_row, key)) return false;
    ++keys_of_row_[static_cast<size_t>(row)];
    return true;
  }
  int32_t keys_of(RowId row) const { return keys_of_row_[static_cast<size_t>(row)]; }
  bool has_unit_from(RowId row, int64_t unit_of_row) const;
  void remove_units_from(RowId row, int64_t unit_of_row);

  SnapshotId find_snapshot(const Key& key) const { return snapshots_.find(key); }
  bool has_snapshot(SnapshotId id) const { return snapshots_.has(id); }
  bool add_snapshot(SnapshotId id, const Key& key) { return snapshots_.insert(id, key); }
  void remove_snapshot(SnapshotId id) { snapshots_.erase(id); }
  int64_t snapshots() const { return snapshots_.size(); }

  Status audit() const;

 private:
  KeyTable units_;      // id: row * units_per_row + unit of the row
  KeyTable snapshots_;  // id: snapshot
  std::vector<int32_t> keys_of_row_;
  int64_t units_per_row_;
};

}  // namespace perigee::cache
