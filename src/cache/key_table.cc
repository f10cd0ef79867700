#include "cache/key_table.h"

#include <bit>
#include <limits>

namespace perigee::cache {

KeyTable::KeyTable(int64_t ids) : keys_(static_cast<size_t>(ids)), present_(static_cast<size_t>(ids)) {
  CHECK_LE(ids, int64_t{std::numeric_limits<int32_t>::max()});
  // At most half full, so that a search ends after one or two slots.
  const uint64_t slots = std::bit_ceil(2 * static_cast<uint64_t>(ids) + 1);
  slots_.assign(slots, {0, -1});
  mask_ = slots - 1;
}

uint64_t KeyTable::slot_of(const Key& key) const {
  const uint32_t tag = tag_of(key);
  uint64_t at = home(key);
  while (slots_[at].id >= 0) {
    if (slots_[at].tag == tag && keys_[static_cast<size_t>(slots_[at].id)] == key) break;
    at = (at + 1) & mask_;
  }
  return at;
}

int32_t KeyTable::find(const Key& key) const { return slots_[slot_of(key)].id; }

bool KeyTable::insert(int64_t id, const Key& key) {
  CHECK(!has(id));
  const uint64_t at = slot_of(key);
  if (slots_[at].id >= 0) return false;
  slots_[at] = {tag_of(key), static_cast<int32_t>(id)};
  keys_[static_cast<size_t>(id)] = key;
  present_[static_cast<size_t>(id)] = 1;
  ++size_;
  return true;
}

void KeyTable::erase(int64_t id) {
  CHECK(has(id));
  uint64_t hole = slot_of(key(id));
  CHECK_EQ(int64_t{slots_[hole].id}, id);
  // Entries behind the hole move up unless that would put them before their home.
  for (uint64_t at = (hole + 1) & mask_; slots_[at].id >= 0; at = (at + 1) & mask_) {
    const uint64_t distance = (at - home(key(slots_[at].id))) & mask_;
    if (distance >= ((at - hole) & mask_)) {
      slots_[hole] = slots_[at];
      hole = at;
    }
  }
  slots_[hole].id = -1;
  present_[static_cast<size_t>(id)] = 0;
  --size_;
}

Status KeyTable::audit() const {
  int64_t count = 0;
  for (size_t id = 0; id < keys_.size(); ++id) {
    if (present_[id] == 0) continue;
    ++count;
    if (find(keys_[id]) != static_cast<int32_t>(id)) {
      return Error{ErrorCode::kInternal, fmt::format("the key of id {} cannot be found in its table", id)};
    }
  }
  if (count == size_) return {};
  return Error{ErrorCode::kInternal, fmt::format("a key table counts {} keys and holds {}", size_, count)};
}

}  // namespace perigee::cache
