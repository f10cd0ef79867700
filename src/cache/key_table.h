// What    A hash table from keys to small ids, for a fixed number of ids that each carry at most one key. Nothing is
//         allocated after it is made: keys lie in an array by id, the table itself holds ids in open addressing.
// Owner   cache.
// Threads One at a time.
// Errors  Misuse is a bug and aborts.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "cache/hash.h"

namespace perigee::cache {

class KeyTable {
 public:
  explicit KeyTable(int64_t ids);

  int32_t find(const Key& key) const;  // its id, or -1
  bool has(int64_t id) const { return present_[static_cast<size_t>(id)] != 0; }
  const Key& key(int64_t id) const { return keys_[static_cast<size_t>(id)]; }
  int64_t size() const { return size_; }

  // Adds a key that the table does not have, for an id that has none. One search: false, and nothing done, when it has.
  bool insert(int64_t id, const Key& key);
  void erase(int64_t id);

  // A sentence when a key cannot be found again or the count is wrong.
  Status audit() const;

 private:
  struct Slot {
    uint32_t tag;  // upper half of the key's first word: most other keys are told apart without looking them up
    int32_t id;    // -1: empty
  };
  static uint32_t tag_of(const Key& key) { return static_cast<uint32_t>(key.words[0] >> 32); }
  uint64_t home(const Key& key) const { return key.words[0] & mask_; }
  uint64_t slot_of(const Key& key) const;  // where it is, or the empty slot where it would go

  std::vector<Key> keys_;
  std::vector<uint8_t> present_;
  std::vector<Slot> slots_;
  uint64_t mask_ = 0;
  int64_t size_ = 0;
};

}  // namespace perigee::cache
