#include "cache/hash.h"

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <rapidcheck/gtest.h>

#include <cstring>
#include <unordered_map>

#include "base/rng.h"
#include "cache/key_table.h"
#include "cache/lru.h"

namespace perigee::cache {
namespace {

Key digest(const std::vector<uint8_t>& bytes) {
  Key key;
  EVP_Digest(bytes.data(), bytes.size(), reinterpret_cast<unsigned char*>(key.words), nullptr, EVP_sha256(), nullptr);
  return key;
}

TEST(Hash, ChainIsSha256OfThePreviousKeyAndTheIdsBytes) {
  const Key root = namespace_key("salt", "");
  const std::vector<int32_t> unit = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 0x01020304};
  std::vector<uint8_t> bytes(32);
  std::memcpy(bytes.data(), root.words, 32);
  for (const int32_t id : unit) {
    for (int b = 0; b < 4; ++b) bytes.push_back(static_cast<uint8_t>(id >> (8 * b)));
  }
  EXPECT_EQ(chain_key(root, unit), digest(bytes));
}

TEST(Hash, NamespacesDiffer) {
  EXPECT_EQ(namespace_key("a", "b"), namespace_key("a", "b"));
  EXPECT_NE(namespace_key("a", "b"), namespace_key("b", "a"));
  EXPECT_NE(namespace_key("ab", ""), namespace_key("a", "b"));
  EXPECT_NE(namespace_key("", "ab"), namespace_key("ab", ""));
}

TEST(Hash, UnitsAreHashedWhenTheyAreComplete) {
  std::vector<int32_t> ids(100);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
  KeyChain whole({}, 16);
  whole.extend(ids, 100);
  EXPECT_EQ(whole.units(), 6);
  KeyChain grown({}, 16);
  for (int64_t n = 0; n <= 100; ++n) {
    grown.extend(ids, n);
    EXPECT_EQ(grown.units(), n / 16);
  }
  for (int64_t u = 1; u <= 6; ++u) EXPECT_EQ(grown.at(u * 16), whole.at(u * 16));
}

TEST(Hash, CommonUnitsEndWhereTheIdsPart) {
  for (int64_t part = 0; part <= 160; part += 7) {
    std::vector<int32_t> a(160, 3);
    std::vector<int32_t> b = a;
    if (part < 160) b[static_cast<size_t>(part)] = 4;
    KeyChain left({}, 16);
    KeyChain right({}, 16);
    left.extend(a, 160);
    right.extend(b, 150);
    EXPECT_EQ(common_units(left, right), std::min<int64_t>(part / 16, 9));
  }
}

// Few home slots, so that entries crowd and wrap around.
RC_GTEST_PROP(KeyTable, BehavesAsAMap, ()) {
  const auto steps = *rc::gen::container<std::vector<std::pair<int, int>>>(
      rc::gen::pair(rc::gen::inRange(0, 12), rc::gen::inRange(0, 20)));
  KeyTable table(12);
  std::unordered_map<uint64_t, int> model;  // key to id
  std::unordered_map<int, uint64_t> key_of;
  const auto make = [](int k) { return Key{{static_cast<uint64_t>(k % 3 + 29), static_cast<uint64_t>(k), 0, 0}}; };
  for (const auto& [id, k] : steps) {
    if (key_of.contains(id)) {
      table.erase(id);
      model.erase(key_of[id]);
      key_of.erase(id);
    } else {
      const bool added = table.insert(id, make(k));
      RC_ASSERT(added == !model.contains(static_cast<uint64_t>(k)));
      if (added) model[static_cast<uint64_t>(k)] = id, key_of[id] = static_cast<uint64_t>(k);
    }
    RC_ASSERT(table.audit().ok());
    for (int other = 0; other < 20; ++other) {
      const auto found = model.find(static_cast<uint64_t>(other));
      RC_ASSERT(table.find(make(other)) == (found == model.end() ? -1 : found->second));
    }
  }
}

RC_GTEST_PROP(LruList, KeepsTheOrderOfUse, ()) {
  const auto items = *rc::gen::container<std::vector<int>>(rc::gen::inRange(0, 8));
  LruList list(8);
  std::vector<int> model;
  for (const int item : items) {
    const auto at = std::find(model.begin(), model.end(), item);
    RC_ASSERT(list.contains(item) == (at != model.end()));
    if (at != model.end()) {
      list.remove(item);
      model.erase(at);
    } else {
      list.push_youngest(item);
      model.push_back(item);
    }
    RC_ASSERT(list.audit().ok());
    RC_ASSERT(list.size() == static_cast<int64_t>(model.size()));
    if (!model.empty()) RC_ASSERT(list.oldest() == model.front());
  }
}

}  // namespace
}  // namespace perigee::cache
