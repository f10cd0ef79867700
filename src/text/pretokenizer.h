// What    Cuts text into the pieces inside which BPE may merge: K3's (and K2's) split pattern, and
// before it the cuts
//         every 400,000 characters and inside runs of more than 25,000 characters of one class
//         (space or not), which the published tokenizer makes and which change the ids of long
//         inputs.
// Owner   text.
// Threads Any.
// Errors  None on valid UTF-8; the caller has replaced everything else (utf8.h).
// Source  The split pattern of Kimi K2 and K3. Unicode 14 (PCRE2 10.42): characters of later
// versions count as symbols.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace perigee::text {

inline constexpr size_t kSliceChars = 400'000;
inline constexpr size_t kRunChars = 25'000;

// The slices of a whole text, in order; together they are the text. The limits are parameters for
// tests.
std::vector<std::string_view> cut_slices(std::string_view utf8, size_t slice_chars = kSliceChars,
                                         size_t run_chars = kRunChars);

// Appends the pieces of one slice, in order; together they are the slice.
void split_pieces(std::string_view utf8, std::vector<std::string_view>& pieces);

}  // namespace perigee::text
