// What    The rows of the cache pool: which are free, and how often each of the others is named.
// Owner   cache.
// Threads One at a time.
// Errors  Misuse is a bug and aborts.
#pragma once

#include <cstdint>
#include <vector>

#include "base/check.h"

namespace perigee::cache {

using RowId = int32_t;
constexpr RowId kNoRow = -1;

class Rows {
 public:
  explicit Rows(int64_t count) : refs_(static_cast<size_t>(count)) {
    free_.reserve(refs_.size());
    for (int64_t row = count; row-- > 0;) free_.push_back(static_cast<RowId>(row));  // row 0 is taken first
  }

  int64_t count() const { return static_cast<int64_t>(refs_.size()); }
  int64_t free() const { return static_cast<int64_t>(free_.size()); }
  int32_t refs(RowId row) const { return refs_[static_cast<size_t>(row)]; }
  const std::vector<RowId>& free_rows() const { return free_; }

  // A free row, named once; kNoRow when there is none.
  RowId take() {
    if (free_.empty()) return kNoRow;
    const RowId row = free_.back();
    free_.pop_back();
    CHECK_EQ(refs(row), 0);
    refs_[static_cast<size_t>(row)] = 1;
    return row;
  }

  void name(RowId row) { ++refs_[static_cast<size_t>(row)]; }

  // Returns how many names are left. A row without names is cached or must be put back.
  int32_t unname(RowId row) {
    CHECK_GT(refs(row), 0);
    return --refs_[static_cast<size_t>(row)];
  }

  void put_back(RowId row) {
    CHECK_EQ(refs(row), 0);
    CHECK_LT(free_.size(), refs_.size());
    free_.push_back(row);
  }

 private:
  std::vector<int32_t> refs_;
  std::vector<RowId> free_;
};

}  // namespace perigee::cache
