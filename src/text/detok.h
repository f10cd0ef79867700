// What    Token ids to text while they arrive: never half a character, and all deltas together are
// the text that
//         Tokenizer::decode() gives for all ids at once. flush() ends the text; a character whose
//         bytes never became complete is U+FFFD then, once.
// Owner   text.
// Threads One stream, one thread; the tokenizer must outlive it.
// Errors  An id outside the vocabulary is out_of_range and changes nothing.
// Source  Python's bytes.decode("utf-8", errors="replace").
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace perigee::text {

class Detokenizer {
 public:
  struct Options {
    bool skip_hidden = true;  // leave out hidden special tokens (`special: true` in the checkpoint)
  };
  explicit Detokenizer(const Tokenizer& tokenizer) : Detokenizer(tokenizer, Options{}) {}
  Detokenizer(const Tokenizer& tokenizer, Options options)
      : tokenizer_(&tokenizer), options_(options) {}

  Result<std::string> push(int32_t id);
  std::string flush() { return stream_.flush(); }

 private:
  const Tokenizer* tokenizer_;
  Options options_;
  Utf8Stream stream_;
};

}  // namespace perigee::text
