#include "ops/topk/topk_simd.h"

#include "num/simd.h"

namespace perigee::ops::cpu {
namespace {

constexpr int64_t kGroup = 64;  // keys that one mask tells apart

// Larger key = better score, over all 65,536 patterns: negative numbers reversed below the positive
// ones, both zeros alike, every NaN at the bottom. In 16 bits throughout, so that the compiler
// makes vectors of it.
inline int16_t key_of(bf16 score) {
  const int16_t magnitude = static_cast<int16_t>(score.bits & 0x7fff);
  const int16_t sign = static_cast<int16_t>(static_cast<int16_t>(score.bits) >> 15);
  const int16_t ordered = static_cast<int16_t>((magnitude ^ sign) - sign);
  return magnitude > 0x7f80 ? INT16_MIN : ordered;
}

// Bit i is set where key[i] >= threshold, for 64 keys.
#if defined(__AVX512BW__)
PERIGEE_INLINE uint64_t at_least(const int16_t* key, int16_t threshold) {
  const __m512i t = _mm512_set1_epi16(threshold);
  const uint64_t low = _mm512_cmpge_epi16_mask(_mm512_loadu_si512(key), t);
  const uint64_t high = _mm512_cmpge_epi16_mask(_mm512_loadu_si512(key + 32), t);
  return low | high << 32;
}
#elif defined(__AVX2__)
PERIGEE_INLINE uint64_t at_least32(const int16_t* key, __m256i t) {
  const __m256i* const p = reinterpret_cast<const __m256i*>(key);
  const __m256i below = _mm256_packs_epi16(_mm256_cmpgt_epi16(t, _mm256_loadu_si256(p)),
                                           _mm256_cmpgt_epi16(t, _mm256_loadu_si256(p + 1)));
  return static_cast<uint32_t>(~_mm256_movemask_epi8(_mm256_permute4x64_epi64(below, 0xd8)));
}
PERIGEE_INLINE uint64_t at_least(const int16_t* key, int16_t threshold) {
  const __m256i t = _mm256_set1_epi16(threshold);
  return at_least32(key, t) | at_least32(key + 32, t) << 32;
}
#else
PERIGEE_INLINE uint64_t at_least(const int16_t* key, int16_t threshold) {
  uint64_t mask = 0;
  for (int i = 0; i < kGroup; ++i) mask |= uint64_t{key[i] >= threshold} << i;
  return mask;
}
#endif

// How many of n keys, a multiple of 64, are at least the threshold. Sixteen bits count a stretch, so that the compiler
// makes vectors of it.
int64_t count_at_least(const int16_t* key, int64_t n, int16_t threshold) {
  constexpr int64_t kStretch = 16384;
  int64_t total = 0;
  for (int64_t first = 0; first < n; first += kStretch) {
    const int64_t end = first + kStretch < n ? first + kStretch : n;
    int16_t sum = 0;
    for (int64_t i = first; i < end; ++i) sum = static_cast<int16_t>(sum + (key[i] >= threshold));
    total += sum;
  }
  return total;
}

}  // namespace

// The threshold is the largest value that at least k keys reach, found by halving the range of 16-bit numbers.
template <>
void TopkKernels<Isa::PERIGEE_ISA>::select(const bf16* scores, int64_t n, int64_t k, int16_t* keys,
                                           int32_t* out) {
  const int64_t padded = (n + kGroup - 1) / kGroup * kGroup;
  for (int64_t i = 0; i < n; ++i) keys[i] = key_of(scores[i]);
  for (int64_t i = n; i < padded; ++i) keys[i] = INT16_MIN;

  int threshold = INT16_MIN;  // reached by all
  int beyond = INT16_MAX + 1;  // reached by fewer than k
  int64_t above = 0;           // how many reach `beyond`
  while (beyond - threshold > 1) {
    const int middle = threshold + (beyond - threshold) / 2;
    const int64_t count = count_at_least(keys, padded, static_cast<int16_t>(middle));
    if (count >= k) {
      threshold = middle;
      if (count == k) {
        above = k;  // no tie has to be broken
        break;
      }
    } else {
      beyond = middle;
      above = count;
    }
  }
  // Every key at the threshold when above == k, else the first k - above of those that equal it.
  const bool all = above == k;
  int64_t ties = k - above;
  int32_t* to = out;
  for (int64_t first = 0; to < out + k; first += kGroup) {
    uint64_t taken = at_least(keys + first, static_cast<int16_t>(threshold));
    for (; taken != 0; taken &= taken - 1) {
      const int64_t i = first + __builtin_ctzll(taken);
      if (!all && keys[i] == threshold && ties-- <= 0) continue;
      *to++ = static_cast<int32_t>(i);
    }
  }
}

}  // namespace perigee::ops::cpu
