#include "cache/hash.h"

#include <openssl/sha.h>

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace perigee::cache {

static_assert(std::endian::native == std::endian::little, "token ids are hashed as they lie in memory");

namespace {

Key finish(SHA256_CTX& context) {
  Key key;
  SHA256_Final(reinterpret_cast<unsigned char*>(key.words), &context);
  return key;
}

// The length first, so that no two pairs of strings give the same bytes.
void add_text(SHA256_CTX& context, std::string_view text) {
  const uint64_t size = text.size();
  SHA256_Update(&context, &size, sizeof(size));
  SHA256_Update(&context, text.data(), text.size());
}

}  // namespace

Key namespace_key(std::string_view salt, std::string_view adapter) {
  SHA256_CTX context;
  SHA256_Init(&context);
  add_text(context, salt);
  add_text(context, adapter);
  return finish(context);
}

Key chain_key(const Key& previous, std::span<const int32_t> unit) {
  SHA256_CTX context;
  SHA256_Init(&context);
  SHA256_Update(&context, previous.words, sizeof(previous.words));
  SHA256_Update(&context, unit.data(), unit.size_bytes());
  return finish(context);
}

void KeyChain::hash_new(std::span<const int32_t> ids, int64_t tokens) {
  CHECK_LE(tokens, static_cast<int64_t>(ids.size()));
  for (int64_t at = units() * unit_; at + unit_ <= tokens; at += unit_) {
    last_ = chain_key(last_, ids.subspan(static_cast<size_t>(at), static_cast<size_t>(unit_)));
    keys_.push_back(last_);
  }
}

int64_t common_units(const KeyChain& a, const KeyChain& b) {
  // Equal keys mean equal tokens all the way from the start, so the end of the common part can be bisected.
  int64_t same = 0;
  int64_t differ = std::min(a.units(), b.units()) + 1;
  while (same + 1 < differ) {
    const int64_t middle = (same + differ) / 2;
    const auto at = static_cast<size_t>(middle - 1);
    (a.keys()[at] == b.keys()[at] ? same : differ) = middle;
  }
  return same;
}

}  // namespace perigee::cache
