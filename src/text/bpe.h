// What    The merge table of a byte-level BPE (`tiktoken.model`) and the merge loop: a piece of
// text is its own token if
//         the table holds it, else neighbouring parts whose joint bytes have the lowest rank are
//         joined, leftmost first, until no joint part has a rank. The id of a token is its rank.
// Owner   text.
// Threads Immutable after parse(); encode_piece() needs one Scratch per thread.
// Errors  parse() returns one sentence with file name and line.
// Source  The behaviour of OpenAI's tiktoken; one line per token: base64 of its bytes, a space, its
// rank.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace perigee::text {

class BytePairTable {
 public:
  // Requires ranks 0..n-1, each once, in any order, and a token for each of the 256 bytes.
  static Result<BytePairTable> parse(std::string_view file_text, std::string_view file_name);

  int32_t size() const { return static_cast<int32_t>(places_.size()); }
  std::string_view bytes(int32_t id) const;
  // The id of these very bytes, or -1.
  int32_t find(std::string_view bytes) const;

  struct Scratch {
    struct Part {
      uint32_t next = 0;  // where the following part starts; the piece's size after the last one
      uint32_t previous = 0;  // where the preceding part starts
      bool alive = false;
    };
    struct Candidate {
      int32_t rank = 0;
      uint32_t start = 0;
      uint32_t end = 0;
    };
    std::vector<Part> parts;
    std::vector<Candidate> heap;
    std::vector<std::pair<uint32_t, int32_t>> short_parts;
  };

  // Appends the ids of one piece. O(n log n) for a piece of n bytes.
  void encode_piece(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const;

 private:
  struct Place {
    uint32_t offset = 0;
    uint32_t size = 0;
  };
  struct Slot {
    uint32_t hash = 0;
    int32_t id = -1;
  };

  void build_slots();
  void merge_short(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const;
  void merge_long(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const;
  void push_candidate(std::string_view piece, uint32_t start, Scratch& scratch) const;

  std::string arena_;  // all tokens' bytes
  std::vector<Place> places_;
  std::vector<Slot> slots_;  // open addressing; a power of two, at most half full
  size_t token_bytes_max_ = 0;
};

}  // namespace perigee::text
