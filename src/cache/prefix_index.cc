#include "cache/prefix_index.h"

namespace perigee::cache {

bool PrefixIndex::has_unit_from(RowId row, int64_t unit_of_row) const {
  for (int64_t u = unit_of_row; u < units_per_row_ && keys_of(row) > 0; ++u) {
    if (units_.has(row * units_per_row_ + u)) return true;
  }
  return false;
}

void PrefixIndex::remove_units_from(RowId row, int64_t unit_of_row) {
  for (int64_t u = unit_of_row; u < units_per_row_ && keys_of(row) > 0; ++u) {
    const int64_t id = row * units_per_row_ + u;
    if (!units_.has(id)) continue;
    units_.erase(id);
    --keys_of_row_[static_cast<size_t>(row)];
  }
}

Status PrefixIndex::audit() const {
  for (size_t row = 0; row < keys_of_row_.size(); ++row) {
    int32_t count = 0;
    for (int64_t u = 0; u < units_per_row_; ++u)
      count += units_.has(static_cast<int64_t>(row) * units_per_row_ + u) ? 1 : 0;
    if (count != keys_of_row_[row]) {
      return Error{ErrorCode::kInternal,
                   fmt::format("row {} counts {} keys and has {}", row, keys_of_row_[row], count)};
    }
  }
  if (const Status s = units_.audit(); !s.ok()) return s;
  return snapshots_.audit();
}

}  // namespace perigee::cache
