// What    Counter-based random numbers: every draw is a pure function of its key, so order and threads do not matter.
// Owner   base.
// Threads Pure functions.
// Errors  None.
// Source  The finaliser is the 64-bit mix of SplitMix64 (Steele, Lea, Flood 2014).
#pragma once

#include <cstdint>
#include <string_view>

namespace perigee {

constexpr uint64_t mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// FNV-1a: a stable name hash, the same on every machine and in the Python tools.
constexpr uint64_t hash_name(std::string_view name) {
  uint64_t h = 0xcbf29ce484222325ull;
  for (const char c : name) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return h;
}

constexpr uint64_t random_bits(uint64_t key, uint64_t counter) { return mix64(mix64(key) ^ counter); }

// Uniform in [0, 1) with 24 bits.
constexpr float random_uniform(uint64_t key, uint64_t counter) {
  return static_cast<float>(random_bits(key, counter) >> 40) * 0x1p-24f;
}

}  // namespace perigee
