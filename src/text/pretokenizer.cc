#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/pretokenizer.h"

#include <pcre2.h>

#include <memory>
#include <string>

#include "base/check.h"
#include "text/utf8.h"

namespace perigee::text {

namespace {

// The published pattern is for a Rust regex engine. What has to be said differently for PCRE2:
// - `\s` is Unicode's White_Space there; PCRE2's also takes U+180E. So the set is written out.
// - `\p{Han}` is the script itself there; PCRE2's default is the script's extensions (they hold
// "。", for one).
// - `[X&&[^\p{Han}]]`: no set intersection here. A character has one general category, so the
// letters and marks X
//   without Han are "none of the other categories, and not Han". One class needs no stack for
//   backtracking either.
std::string split_pattern() {
  const std::string space =
      R"(\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
  const std::string upper = R"([^\p{Ll}\p{N}\p{P}\p{S}\p{Z}\p{C}\p{sc:Han}])";  // Lu Lt Lm Lo M
  const std::string lower = R"([^\p{Lu}\p{Lt}\p{N}\p{P}\p{S}\p{Z}\p{C}\p{sc:Han}])";  // Ll Lm Lo M
  const std::string before_word = R"([^\r\n\p{L}\p{N}]?)";
  const std::string contraction = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)";
  return R"(\p{sc:Han}+)"
         "|" +
         before_word + upper + "*" + lower + "+" + contraction + "|" + before_word + upper + "+" +
         lower + "*" + contraction +
         R"(|\p{N}{1,3})"
         "| ?[^" +
         space +
         R"(\p{L}\p{N}]+[\r\n]*)"
         "|[" +
         space +
         R"(]*[\r\n]+)"
         "|[" +
         space + "]+(?![^" + space +
         "])"
         "|[" +
         space + "]+";
}

class SplitPattern {
 public:
  SplitPattern() {
    const std::string pattern = split_pattern();
    int error = 0;
    size_t offset = 0;
    code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                          PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &error, &offset, nullptr);
    CHECK(code_ != nullptr);
    has_jit_ = pcre2_jit_compile(code_, PCRE2_JIT_COMPLETE) == 0;
  }
  ~SplitPattern() { pcre2_code_free(code_); }

  // Where the piece that begins at `at` ends.
  size_t piece_end(std::string_view text, size_t at, pcre2_match_data* match) const {
    const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    const int found =
        has_jit_ ? pcre2_jit_match(code_, subject, text.size(), at, 0, match, nullptr)
                 : pcre2_match(code_, subject, text.size(), at, PCRE2_NO_UTF_CHECK, match, nullptr);
    CHECK_GT(found, 0);  // every character is of some class, so some alternative takes it
    const size_t end = pcre2_get_ovector_pointer(match)[1];
    CHECK_GT(end, at);
    return end;
  }

  const pcre2_code* code() const { return code_; }

 private:
  pcre2_code* code_ = nullptr;
  bool has_jit_ = false;
};

const SplitPattern& shared_pattern() {
  static const SplitPattern pattern;
  return pattern;
}

struct FreeMatch {
  void operator()(pcre2_match_data* match) const { pcre2_match_data_free(match); }
};

}  // namespace

std::vector<std::string_view> cut_slices(std::string_view utf8, size_t slice_chars,
                                         size_t run_chars) {
  std::vector<std::string_view> slices;
  if (utf8.empty()) return slices;
  if (utf8.size() <= run_chars && utf8.size() <= slice_chars) return {utf8};
  size_t slice_from = 0, chars_in_slice = 0, run = 0;
  bool run_is_space = false;
  for (size_t at = 0; at < utf8.size();) {
    const Utf8Step step = utf8_step(utf8, at);
    const bool is_space = is_python_space(step.code_point);
    if (chars_in_slice == slice_chars) {
      slices.push_back(utf8.substr(slice_from, at - slice_from));
      slice_from = at;
      chars_in_slice = 0;
      run = 0;  // a new slice starts its own count of runs
    } else if (run > 0 && is_space == run_is_space && run == run_chars) {
      slices.push_back(utf8.substr(slice_from, at - slice_from));
      slice_from = at;
      run = 0;
    }
    run = run > 0 && is_space == run_is_space ? run + 1 : 1;
    run_is_space = is_space;
    ++chars_in_slice;
    at += step.bytes;
  }
  slices.push_back(utf8.substr(slice_from));
  return slices;
}

void split_pieces(std::string_view utf8, std::vector<std::string_view>& pieces) {
  const SplitPattern& pattern = shared_pattern();
  const std::unique_ptr<pcre2_match_data, FreeMatch> match(
      pcre2_match_data_create_from_pattern(pattern.code(), nullptr));
  CHECK(match != nullptr);
  for (size_t at = 0; at < utf8.size();) {
    const size_t end = pattern.piece_end(utf8, at, match.get());
    pieces.push_back(utf8.substr(at, end - at));
    at = end;
  }
}

}  // namespace perigee::text
