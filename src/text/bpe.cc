#include "text/bpe.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <limits>

namespace perigee::text {

namespace {

constexpr size_t kShortPieceBytes = 48;  // up to here a plain scan beats the heap
constexpr int32_t kNoRank = std::numeric_limits<int32_t>::max();

uint32_t hash_bytes(std::string_view bytes) {
  uint64_t hash = bytes.size() * 0x9E3779B97F4A7C15ull;
  const char* at = bytes.data();
  size_t left = bytes.size();
  for (; left >= 8; at += 8, left -= 8) {
    uint64_t word;
    std::memcpy(&word, at, 8);
    hash = (hash ^ word) * 0xD6E8FEB86659FD93ull;
    hash ^= hash >> 32;
  }
  uint64_t word = 0;
  std::memcpy(&word, at, left);
  hash = (hash ^ word) * 0xD6E8FEB86659FD93ull;
  hash ^= hash >> 32;
  return static_cast<uint32_t>(hash);
}

// Appends the decoded bytes; false if the text is not base64 with padding.
bool append_base64(std::string_view text, std::string& out) {
  static constexpr std::string_view kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  static constexpr auto kValues = [] {
    std::array<int8_t, 256> values{};
    values.fill(-1);
    for (size_t i = 0; i < kAlphabet.size(); ++i) {
      values[static_cast<unsigned char>(kAlphabet[i])] = static_cast<int8_t>(i);
    }
    return values;
  }();
  if (text.empty() || text.size() % 4 != 0) return false;
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0;
  uint32_t bits = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool is_padding = i >= text.size() - padding;
    const int value = is_padding ? 0 : kValues[static_cast<unsigned char>(text[i])];
    if (value < 0) return false;
    bits = (bits << 6) | static_cast<uint32_t>(value);
    if (i % 4 != 3) continue;
    const size_t kept = i + 1 == text.size() ? 3 - padding : 3;
    for (size_t k = 0; k < kept; ++k) out += static_cast<char>(bits >> (16 - 8 * k));
    bits = 0;
  }
  return true;
}

}  // namespace

Result<BytePairTable> BytePairTable::parse(std::string_view file_text, std::string_view file_name) {
  BytePairTable table;
  int line_number = 0;
  std::vector<int> line_of_rank;
  for (size_t at = 0; at < file_text.size();) {
    const size_t end = std::min(file_text.find('\n', at), file_text.size());
    std::string_view line = file_text.substr(at, end - at);
    at = end + 1;
    ++line_number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    const size_t space = line.find(' ');
    int32_t rank = -1;
    if (space != std::string_view::npos) {
      const char* line_end = line.data() + line.size();
      const auto read = std::from_chars(line.data() + space + 1, line_end, rank);
      if (read.ec != std::errc() || read.ptr != line_end) rank = -1;
    }
    const uint32_t offset = static_cast<uint32_t>(table.arena_.size());
    if (rank < 0 || !append_base64(line.substr(0, space), table.arena_)) {
      return invalid_argument(
          "{}: line {} is not a token in base64, one space and its rank; copy the file again",
          file_name, line_number);
    }
    // Ranks are ids, so there are no more of them than lines.
    if (static_cast<size_t>(rank) > file_text.size()) {
      return invalid_argument("{}: line {} has rank {}, but ranks count from 0 without gaps",
                              file_name, line_number, rank);
    }
    const size_t index = static_cast<size_t>(rank);
    if (index >= table.places_.size()) {
      table.places_.resize(index + 1);
      line_of_rank.resize(index + 1, 0);
    }
    if (line_of_rank[index] != 0) {
      return invalid_argument("{}: line {} repeats rank {} of line {}", file_name, line_number,
                              rank, line_of_rank[index]);
    }
    line_of_rank[index] = line_number;
    table.places_[index] = {offset, static_cast<uint32_t>(table.arena_.size()) - offset};
  }
  for (size_t rank = 0; rank < line_of_rank.size(); ++rank) {
    if (line_of_rank[rank] == 0) {
      return invalid_argument("{}: no line has rank {}; ranks count from 0 without gaps", file_name,
                              rank);
    }
  }
  table.build_slots();
  for (size_t rank = 0; rank < line_of_rank.size(); ++rank) {
    const int32_t id = table.find(table.bytes(static_cast<int32_t>(rank)));
    if (id != static_cast<int32_t>(rank)) {
      return invalid_argument("{}: line {} repeats the token of line {}", file_name,
                              line_of_rank[rank], line_of_rank[static_cast<size_t>(id)]);
    }
  }
  for (int byte = 0; byte < 256; ++byte) {
    const char as_char = static_cast<char>(byte);
    if (table.find({&as_char, 1}) < 0) {
      return invalid_argument("{}: no token stands for the single byte {:#04x}", file_name, byte);
    }
  }
  return table;
}

void BytePairTable::build_slots() {
  size_t count = 16;
  while (count < 2 * places_.size()) count *= 2;
  slots_.assign(count, {});
  for (int32_t id = 0; id < size(); ++id) {
    const std::string_view token = bytes(id);
    token_bytes_max_ = std::max(token_bytes_max_, token.size());
    const uint32_t hash = hash_bytes(token);
    size_t at = hash & (count - 1);
    while (slots_[at].id >= 0) at = (at + 1) & (count - 1);
    slots_[at] = {hash, id};
  }
}

std::string_view BytePairTable::bytes(int32_t id) const {
  const Place& place = places_[static_cast<size_t>(id)];
  return std::string_view(arena_).substr(place.offset, place.size);
}

int32_t BytePairTable::find(std::string_view token) const {
  if (token.size() > token_bytes_max_) return -1;
  const uint32_t hash = hash_bytes(token);
  const size_t mask = slots_.size() - 1;
  for (size_t at = hash & mask; slots_[at].id >= 0; at = (at + 1) & mask) {
    if (slots_[at].hash == hash && bytes(slots_[at].id) == token) return slots_[at].id;
  }
  return -1;
}

void BytePairTable::encode_piece(std::string_view piece, Scratch& scratch,
                                 std::vector<int32_t>& ids) const {
  if (piece.empty()) return;
  const int32_t whole = find(piece);
  if (whole >= 0) {
    ids.push_back(whole);
  } else if (piece.size() <= kShortPieceBytes) {
    merge_short(piece, scratch, ids);
  } else {
    merge_long(piece, scratch, ids);
  }
}

// Parts lie in an array, each with its start and the rank of its union with the next part.
void BytePairTable::merge_short(std::string_view piece, Scratch& scratch,
                                std::vector<int32_t>& ids) const {
  auto& parts = scratch.short_parts;
  parts.clear();
  for (uint32_t i = 0; i <= piece.size(); ++i) parts.emplace_back(i, kNoRank);
  const auto set_rank = [&](size_t i) {
    if (i + 2 >= parts.size()) {
      parts[i].second = kNoRank;
      return;
    }
    const int32_t rank = find(piece.substr(parts[i].first, parts[i + 2].first - parts[i].first));
    parts[i].second = rank < 0 ? kNoRank : rank;
  };
  for (size_t i = 0; i + 2 < parts.size(); ++i) set_rank(i);
  while (true) {
    size_t best = 0;
    for (size_t i = 1; i < parts.size(); ++i) {
      if (parts[i].second < parts[best].second) best = i;
    }
    if (parts[best].second == kNoRank) break;
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    set_rank(best);
    if (best > 0) set_rank(best - 1);
  }
  for (size_t i = 0; i + 1 < parts.size(); ++i) {
    ids.push_back(find(piece.substr(parts[i].first, parts[i + 1].first - parts[i].first)));
  }
}

namespace {

// A min-heap by rank, then by place: the order in which repeated scans would find the unions.
bool comes_later(const BytePairTable::Scratch::Candidate& a,
                 const BytePairTable::Scratch::Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.start > b.start;
}

}  // namespace

void BytePairTable::push_candidate(std::string_view piece, uint32_t start, Scratch& scratch) const {
  const uint32_t middle = scratch.parts[start].next;
  if (middle >= piece.size()) return;
  const uint32_t end = scratch.parts[middle].next;
  const int32_t rank = find(piece.substr(start, end - start));
  if (rank < 0) return;
  scratch.heap.push_back({rank, start, end});
  std::push_heap(scratch.heap.begin(), scratch.heap.end(), comes_later);
}

// Parts are a linked list over their start bytes; a heap gives the next union and outdated entries
// are passed over.
void BytePairTable::merge_long(std::string_view piece, Scratch& scratch,
                               std::vector<int32_t>& ids) const {
  const uint32_t size = static_cast<uint32_t>(piece.size());
  auto& parts = scratch.parts;
  parts.assign(size, {});
  scratch.heap.clear();
  for (uint32_t i = 0; i < size; ++i) parts[i] = {i + 1, i == 0 ? 0 : i - 1, true};
  for (uint32_t i = 0; i < size; ++i) push_candidate(piece, i, scratch);
  while (!scratch.heap.empty()) {
    std::pop_heap(scratch.heap.begin(), scratch.heap.end(), comes_later);
    const Scratch::Candidate best = scratch.heap.back();
    scratch.heap.pop_back();
    Scratch::Part& part = parts[best.start];
    if (!part.alive || part.next >= size || parts[part.next].next != best.end) continue;
    parts[part.next].alive = false;
    part.next = best.end;
    if (best.end < size) parts[best.end].previous = best.start;
    push_candidate(piece, best.start, scratch);
    if (best.start > 0) push_candidate(piece, part.previous, scratch);
  }
  for (uint32_t start = 0; start < size; start = parts[start].next) {
    ids.push_back(find(piece.substr(start, parts[start].next - start)));
  }
}

}  // namespace perigee::text
