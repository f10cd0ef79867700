// What    Text to token ids and back, exactly as Kimi K3's published tokenizer: byte-level BPE over
// pieces
//         (pretokenizer.h, bpe.h), then 256 special ids after the merges. Two ways in, and the
//         difference is a matter of security: encode_control() is for text that the renderer itself
//         writes and may yield special ids; encode_text() is for what users, tools and files say
//         and never does, whatever markers the text spells. No id is put in front. Bytes that are
//         not UTF-8 are read as U+FFFD (utf8.h).
// Owner   text.
// Threads Immutable after loading; every method may be called from any thread.
// Errors  load() names the file and line; ids outside the vocabulary are out_of_range.
// Source  `tiktoken.model`, `tokenizer_config.json` of the checkpoint. A special id that the config
// does not name is
//         spelled <|reserved_token_ID|>. Entries of the config beyond the 256 special ids have no
//         embedding row; they are left out, so neither their ids nor their spellings mean anything
//         here.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/bpe.h"

namespace perigee::text {

class Tokenizer {
 public:
  static constexpr int32_t kSpecialTokens = 256;

  // Reads `tiktoken.model` and `tokenizer_config.json` of a checkpoint folder.
  static Result<Tokenizer> load(const std::string& folder);
  // The same from memory; the names are for sentences.
  static Result<Tokenizer> parse(std::string_view model_text, std::string_view model_name,
                                 std::string_view config_text, std::string_view config_name);

  std::vector<int32_t> encode_control(std::string_view text) const;
  std::vector<int32_t> encode_text(std::string_view text) const;
  // As the two above, appending.
  void encode_control(std::string_view text, std::vector<int32_t>& ids) const;
  void encode_text(std::string_view text, std::vector<int32_t>& ids) const;

  int32_t vocab_size() const { return base_size() + kSpecialTokens; }
  int32_t base_size() const {
    return table_.size();
  }  // ids below are ordinary, from here on special
  bool has_id(int64_t id) const { return id >= 0 && id < vocab_size(); }
  bool is_special(int32_t id) const { return has_id(id) && id >= base_size(); }
  // Special ids that plain text output leaves out. `<|open|>`, `<|close|>` and `<|sep|>` are
  // special but not hidden.
  bool is_hidden(int32_t id) const;

  // The id of a special token by its spelling.
  std::optional<int32_t> special_id(std::string_view spelling) const;
  // The bytes of an ordinary token (perhaps half a character), or the spelling of a special one.
  Result<std::string_view> token_bytes(int64_t id) const;

  struct DecodeOptions {
    bool skip_hidden = false;  // leave out hidden special tokens
  };
  Result<std::string> decode(std::span<const int32_t> ids, DecodeOptions options) const;
  Result<std::string> decode(std::span<const int32_t> ids) const {
    return decode(ids, DecodeOptions{});
  }

 private:
  struct Special {
    std::string spelling;
    bool hidden = true;
  };
  struct Match {
    size_t at = 0;
    size_t size = 0;
    int32_t id = -1;
  };

  Status read_specials(std::string_view config_text, std::string_view config_name);
  void index_specials();
  std::optional<Match> next_special(std::string_view text, size_t from) const;
  void encode_ordinary(std::string_view utf8, BytePairTable::Scratch& scratch,
                       std::vector<int32_t>& ids) const;

  BytePairTable table_;
  std::vector<Special> specials_;  // by id - base_size()
  std::array<std::vector<int32_t>, 256>
      by_first_;  // indexes into specials_ by first byte, longest spelling first
};

}  // namespace perigee::text
