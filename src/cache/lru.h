// What    A list of items by age: a fixed number of small ids, each in the list or not, in constant time.
// Owner   cache.
// Threads One at a time.
// Errors  Misuse is a bug and aborts.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"

namespace perigee::cache {

class LruList {
 public:
  explicit LruList(int64_t items) : links_(static_cast<size_t>(items) + 1), end_(static_cast<int32_t>(items)) {
    links_.back() = {end_, end_};
  }

  bool contains(int64_t item) const { return link(item).older != kOut; }
  bool empty() const { return size_ == 0; }
  int64_t size() const { return size_; }
  int64_t oldest() const {
    CHECK(!empty());
    return links_.back().younger;
  }

  void push_youngest(int64_t item) {
    CHECK(!contains(item));
    const int32_t before = links_.back().older;
    link(item) = {before, end_};
    link(before).younger = static_cast<int32_t>(item);
    links_.back().older = static_cast<int32_t>(item);
    ++size_;
  }

  void remove(int64_t item) {
    CHECK(contains(item));
    link(link(item).older).younger = link(item).younger;
    link(link(item).younger).older = link(item).older;
    link(item) = {};
    --size_;
  }

  // A sentence when the links do not form one ring of `size` items.
  Status audit() const {
    int64_t count = 0;
    int32_t before = end_;
    for (int32_t at = links_.back().younger; at != end_ && count <= size_; at = link(at).younger, ++count) {
      if (link(at).older != before)
        return Error{ErrorCode::kInternal, fmt::format("item {} of the age list has a wrong link", at)};
      before = at;
    }
    if (count == size_ && links_.back().older == before) return {};
    return Error{ErrorCode::kInternal, fmt::format("the age list counts {} items and links {}", size_, count)};
  }

 private:
  static constexpr int32_t kOut = -1;
  struct Link {
    int32_t older = kOut;
    int32_t younger = kOut;
  };
  Link& link(int64_t item) { return links_[static_cast<size_t>(item)]; }
  const Link& link(int64_t item) const { return links_[static_cast<size_t>(item)]; }

  std::vector<Link> links_;  // the last one closes the ring: its younger neighbour is the oldest item
  int32_t end_;
  int64_t size_ = 0;
};

}  // namespace perigee::cache
