#include <algorithm>
#include <numeric>
#include <vector>

#include "ops/dynamic_items.h"
#include "ops/topk/topk.h"

namespace perigee::ops::cpu {
namespace {

constexpr int64_t kSkip = 32;  // keys that the last pass looks at together; most groups of a long row hold no winner

// Larger key = better score, over all 65,536 patterns: negative numbers reversed below the positive ones, both zeros
// alike, every NaN at the bottom.
inline uint16_t key_of(bf16 score) {
  const unsigned b = score.bits;
  const unsigned magnitude = b & 0x7fffu;
  const unsigned ordered = b & 0x8000u ? 0x8000u - magnitude : 0x8000u + magnitude;
  return static_cast<uint16_t>(magnitude > 0x7f80u ? 0u : ordered);
}

// Largest bin so that it and the bins above hold at least `wanted`; *above = how many the bins above hold.
int threshold_bin(const uint32_t* bins, int64_t wanted, int64_t* above) {
  int64_t sum = 0;
  int bin = 255;
  while (sum + bins[bin] < wanted) sum += bins[bin--];
  *above = sum;
  return bin;
}

// Selects exactly k < length positions. Two passes over bytes of the key find the threshold; the last one writes.
void select_row(const bf16* scores, int64_t length, int64_t k, std::vector<uint16_t>& keys,
                int32_t* out) {
  if (static_cast<int64_t>(keys.size()) < length) keys.resize(static_cast<size_t>(length));
  uint16_t* const key = keys.data();
  for (int64_t i = 0; i < length; ++i) key[i] = key_of(scores[i]);

  // Four histograms: equal neighbours would wait for each other's store in a single one.
  uint32_t high[4][256] = {};
  for (int64_t i = 0; i < length; ++i) ++high[i % 4][key[i] >> 8];
  for (int b = 0; b < 256; ++b) high[0][b] += high[1][b] + high[2][b] + high[3][b];
  int64_t above = 0;
  const int high_bin = threshold_bin(high[0], k, &above);

  uint32_t low[4][256] = {};
  for (int64_t i = 0; i < length; ++i) {
    low[i % 4][key[i] & 255] += key[i] >> 8 == high_bin;  // no branch: it would be unpredictable
  }
  for (int b = 0; b < 256; ++b) low[0][b] += low[1][b] + low[2][b] + low[3][b];
  int64_t above_low = 0;
  const int low_bin = threshold_bin(low[0], k - above, &above_low);

  const uint16_t threshold = static_cast<uint16_t>(high_bin << 8 | low_bin);
  int64_t ties = k - above - above_low;  // how many equal to the threshold are taken, the first ones
  int32_t* to = out;
  for (int64_t begin = 0; to < out + k; begin += kSkip) {
    const int64_t end = std::min(begin + kSkip, length);
    bool any = false;
    for (int64_t i = begin; i < end; ++i) any |= key[i] >= threshold;
    for (int64_t i = begin; any && i < end && to < out + k; ++i) {
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
    thread_local std::vector<uint16_t> keys;
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
