#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "ops/dynamic_items.h"
#include "ops/topk/topk.h"

namespace perigee::ops::cpu {
namespace {

// Keys that the last pass looks at together; most groups of a long row hold no winner.
constexpr int64_t kSkip = 32;
// One histogram alone would make equal neighbours wait for each other's store.
constexpr int kTables = 4;

// Larger key = better score, over all 65,536 patterns: negative numbers reversed below the positive
// ones, both zeros alike, every NaN at the bottom. In 16 bits throughout, so that the compiler
// makes vectors of it.
inline int16_t key_of(bf16 score) {
  const int16_t magnitude = static_cast<int16_t>(score.bits & 0x7fff);
  const int16_t sign = static_cast<int16_t>(static_cast<int16_t>(score.bits) >> 15);
  const int16_t ordered = static_cast<int16_t>((magnitude ^ sign) - sign);
  return magnitude > 0x7f80 ? INT16_MIN : ordered;
}

// How many keys have each value of bin_of(key), counted where counts(key).
template <class Bin, class Counts>
std::vector<uint32_t> histogram(const int16_t* key, int64_t n, Bin bin_of, Counts counts) {
  uint32_t table[kTables][256] = {};
  int64_t i = 0;
  for (; i + kTables <= n; i += kTables) {
    for (int t = 0; t < kTables; ++t) table[t][bin_of(key[i + t])] += counts(key[i + t]);
  }
  for (; i < n; ++i) table[0][bin_of(key[i])] += counts(key[i]);
  std::vector<uint32_t> sum(256);
  for (size_t b = 0; b < 256; ++b) {
    for (int t = 0; t < kTables; ++t) sum[b] += table[t][b];
  }
  return sum;
}

// Largest bin so that it and the bins above hold at least `wanted`; *above = how many the bins
// above hold.
int threshold_bin(const std::vector<uint32_t>& bins, int64_t wanted, int64_t* above) {
  int64_t sum = 0;
  size_t bin = 255;
  while (sum + bins[bin] < wanted) sum += bins[bin--];
  *above = sum;
  return static_cast<int>(bin);
}

bool any_at_least(const int16_t* key, int16_t threshold) {
  int16_t any = 0;
  for (int64_t i = 0; i < kSkip; ++i) any |= key[i] >= threshold ? -1 : 0;
  return any != 0;
}

// Selects exactly k < length positions. Two passes over bytes of the key find the threshold; the
// last one writes.
void select_row(const bf16* scores, int64_t length, int64_t k, std::vector<int16_t>& keys,
                int32_t* out) {
  if (static_cast<int64_t>(keys.size()) < length) keys.resize(static_cast<size_t>(length));
  int16_t* const key = keys.data();
  for (int64_t i = 0; i < length; ++i) key[i] = key_of(scores[i]);

  int64_t above = 0;
  const auto high_byte = [](int16_t x) { return (x >> 8) + 128; };
  const auto everything = [](int16_t) { return 1u; };
  const int high = threshold_bin(histogram(key, length, high_byte, everything), k, &above) - 128;
  int64_t above_low = 0;
  const auto low_byte = [](int16_t x) { return x & 255; };
  const auto in_bin = [high](int16_t x) { return uint32_t{x >> 8 == high}; };
  const int low = threshold_bin(histogram(key, length, low_byte, in_bin), k - above, &above_low);

  const int16_t threshold = static_cast<int16_t>(high * 256 + low);
  int64_t ties = k - above - above_low;  // how many equal to it are taken, the first ones
  int32_t* to = out;
  for (int64_t begin = 0; to < out + k; begin += kSkip) {
    const int64_t n = std::min(kSkip, length - begin);
    // A constant count makes vectors; the last group is simply looked at.
    if (n == kSkip && !any_at_least(key + begin, threshold)) continue;
    for (int64_t i = begin; i < begin + n && to < out + k; ++i) {
      if (key[i] < threshold) continue;
      if (key[i] == threshold && ties-- <= 0) continue;
      *to++ = static_cast<int32_t>(i);
    }
  }
}

}  // namespace

void topk(const Context& context, const Tensor& scores, const Tensor& lengths, int64_t k,
          const Tensor& out, const Tensor& counts) {
  const bf16* data = scores.as<bf16>();
  const int32_t* length_of = lengths.as<int32_t>();
  int32_t* count_of = counts.as<int32_t>();
  for_each_item(context.pool, scores.rows(), [&](int64_t t) {
    thread_local std::vector<int16_t> keys;
    int32_t* to = out.row<int32_t>(t);
    const int64_t length = length_of[t];
    const int64_t count = std::min(length, k);
    if (length > k) {
      select_row(data + t * scores.row_stride, length, k, keys, to);
    } else {
      std::iota(to, to + count, 0);
      std::fill(to + count, to + k, -1);
    }
    count_of[t] = static_cast<int32_t>(count);
  });
}

}  // namespace perigee::ops::cpu
