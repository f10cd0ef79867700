// What    Names of token prefixes: a chain of SHA-256 keys over units of a few tokens.
//           key_0 = SHA256(namespace),  key_i = SHA256(key_{i-1} | the unit's token ids as little-endian int32)
//         So a key stands for everything from the first token to the end of its unit, and for the salt and adapter too.
// Owner   cache.
// Threads Value types.
// Errors  None.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace perigee::cache {

struct Key {
  uint64_t words[4] = {};
  bool operator==(const Key&) const = default;
};

// Requests of different salts or adapters never share anything.
Key namespace_key(std::string_view salt, std::string_view adapter);

Key chain_key(const Key& previous, std::span<const int32_t> unit);

// The keys of one sequence: every unit is hashed once, when it is complete and somebody asks.
class KeyChain {
 public:
  KeyChain(const Key& root, int64_t unit) : last_(root), unit_(unit) {}

  // Hashes the units that are complete within the first `tokens` ids and have not been hashed yet.
  void extend(std::span<const int32_t> ids, int64_t tokens) {
    if ((units() + 1) * unit_ <= tokens) hash_new(ids, tokens);
  }
  int64_t units() const { return static_cast<int64_t>(keys_.size()); }
  int64_t unit() const { return unit_; }
  std::span<const Key> keys() const { return keys_; }
  // The key of the first `tokens` tokens, a multiple of the unit that has been hashed.
  const Key& at(int64_t tokens) const { return keys_[static_cast<size_t>(tokens / unit_ - 1)]; }

 private:
  void hash_new(std::span<const int32_t> ids, int64_t tokens);

  std::vector<Key> keys_;
  Key last_;
  int64_t unit_;
};

// Units that two chains have in common, counted from the start.
int64_t common_units(const KeyChain& a, const KeyChain& b);

}  // namespace perigee::cache
