// What    Finds stop strings in text that arrives in pieces, and gives out at once whatever can no longer become part
//         of one. Held back is only the longest end of the text that begins some stop string; a match ends at the
//         first byte at which any string is complete, and of several that end there the longest counts. The outcome
//         does not depend on the pieces.
// Owner   serve.
// Threads StopStrings is immutable; a StopMatcher belongs to one thread at a time.
// Errors  None.
// Cost    O(bytes), by the automaton of Aho and Corasick.
// Source  Aho, Corasick: Efficient string matching (1975).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace perigee::serve {

class StopStrings {
 public:
  // Requires non-empty strings.
  explicit StopStrings(std::vector<std::string> strings);

  bool empty() const { return strings_.empty(); }
  const std::string& at(size_t index) const { return strings_[index]; }

 private:
  friend class StopMatcher;
  struct Node {
    std::vector<std::pair<unsigned char, uint32_t>> next;  // few; searched in order
    uint32_t fail = 0;                                     // the longest shorter end that is a beginning too
    uint32_t depth = 0;                                    // bytes from the root
    int32_t string = -1;                                   // the longest string that ends here
  };
  uint32_t child(uint32_t node, unsigned char byte) const;  // 0: none
  uint32_t step(uint32_t node, unsigned char byte) const;
  void add(size_t index);
  void link();

  std::vector<std::string> strings_;
  std::vector<Node> nodes_;
};

class StopMatcher {
 public:
  // Null or empty: nothing is ever held or found.
  explicit StopMatcher(std::shared_ptr<const StopStrings> strings) : strings_(std::move(strings)) {}

  // Appends to `out` what is certain. Returns which string is complete; then `out` has the text before it (and the
  // string itself, if `include`), and nothing may be pushed any more.
  std::optional<size_t> push(std::string_view text, bool include, std::string& out);
  // Text in which no string counts: given out with all that was held.
  void pass(std::string_view text, std::string& out);
  // The text is over: gives out what was held.
  void flush(std::string& out) { pass({}, out); }

 private:
  std::shared_ptr<const StopStrings> strings_;
  std::string held_;
  uint32_t node_ = 0;
};

}  // namespace perigee::serve
