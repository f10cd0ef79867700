#include "text/tokenizer.h"

#include <algorithm>
#include <charconv>

#include "base/file.h"
#include "text/json.h"
#include "text/pretokenizer.h"
#include "text/utf8.h"

namespace perigee::text {

Result<Tokenizer> Tokenizer::load(const std::string& folder) {
  const std::string model_path = folder + "/tiktoken.model";
  const std::string config_path = folder + "/tokenizer_config.json";
  const Result<std::string> model = read_file(model_path);
  if (!model.ok()) return model.error();
  const Result<std::string> config = read_file(config_path);
  if (!config.ok()) return config.error();
  return parse(*model, model_path, *config, config_path);
}

Result<Tokenizer> Tokenizer::parse(std::string_view model_text, std::string_view model_name,
                                   std::string_view config_text, std::string_view config_name) {
  Result<BytePairTable> table = BytePairTable::parse(model_text, model_name);
  if (!table.ok()) return table.error();
  Tokenizer tokenizer;
  tokenizer.table_ = std::move(*table);
  const Status read = tokenizer.read_specials(config_text, config_name);
  if (!read.ok()) return read.error();
  tokenizer.index_specials();
  return tokenizer;
}

Status Tokenizer::read_specials(std::string_view config_text, std::string_view config_name) {
  const Result<Json> config = parse_json(config_text, config_name);
  if (!config.ok()) return config.error();
  if (!config->is_object())
    return invalid_argument("{}: must be an object, not {}", config_name, config->kind_name());
  for (int32_t i = 0; i < kSpecialTokens; ++i) {
    specials_.push_back({fmt::format("<|reserved_token_{}|>", base_size() + i), true});
  }
  const Json* named = config->find_set("added_tokens_decoder");
  if (named == nullptr || !named->is_object()) {
    return invalid_argument("{}: `added_tokens_decoder` must be an object from id to token",
                            config_name);
  }
  for (const auto& [key, entry] : named->members()) {
    int64_t id = -1;
    const auto read = std::from_chars(key.data(), key.data() + key.size(), id);
    if (read.ec != std::errc() || read.ptr != key.data() + key.size() || id < base_size()) {
      return invalid_argument(
          "{}: `added_tokens_decoder` has key \"{}\", which is no id from {} on", config_name, key,
          base_size());
    }
    if (id >= vocab_size()) continue;  // no embedding row: see the header
    const Json* content = entry.find("content");
    const Json* special = entry.find_set("special");
    if (content == nullptr || !content->is_string() || content->as_string().empty()) {
      return invalid_argument("{}: token {} needs a `content` that is a non-empty string",
                              config_name, id);
    }
    if (special != nullptr && !special->is_bool()) {
      return invalid_argument("{}: `special` of token {} must be true or false", config_name, id);
    }
    specials_[static_cast<size_t>(id - base_size())] = {content->as_string(),
                                                        special == nullptr || special->as_bool()};
  }
  std::vector<std::string_view> spellings;
  for (const Special& special : specials_) spellings.push_back(special.spelling);
  std::sort(spellings.begin(), spellings.end());
  const auto twice = std::adjacent_find(spellings.begin(), spellings.end());
  if (twice != spellings.end()) {
    return invalid_argument("{}: two ids have the same content \"{}\"", config_name, *twice);
  }
  return {};
}

void Tokenizer::index_specials() {
  for (size_t i = 0; i < specials_.size(); ++i) {
    by_first_[static_cast<unsigned char>(specials_[i].spelling[0])].push_back(
        static_cast<int32_t>(i));
  }
  for (std::vector<int32_t>& bucket : by_first_) {
    std::stable_sort(bucket.begin(), bucket.end(), [&](int32_t a, int32_t b) {
      return specials_[static_cast<size_t>(a)].spelling.size() >
             specials_[static_cast<size_t>(b)].spelling.size();
    });
  }
}

std::optional<Tokenizer::Match> Tokenizer::next_special(std::string_view text, size_t from) const {
  for (size_t at = from; at < text.size(); ++at) {
    for (const int32_t i : by_first_[static_cast<unsigned char>(text[at])]) {
      const std::string& spelling = specials_[static_cast<size_t>(i)].spelling;
      if (text.substr(at, spelling.size()) == spelling) {
        return Match{at, spelling.size(), base_size() + i};
      }
    }
  }
  return std::nullopt;
}

void Tokenizer::encode_ordinary(std::string_view utf8, BytePairTable::Scratch& scratch,
                                std::vector<int32_t>& ids) const {
  std::vector<std::string_view> pieces;
  split_pieces(utf8, pieces);
  for (const std::string_view piece : pieces) table_.encode_piece(piece, scratch, ids);
}

void Tokenizer::encode_text(std::string_view text, std::vector<int32_t>& ids) const {
  std::string repaired;
  if (!is_valid_utf8(text)) {
    repaired = replace_invalid_utf8(text);
    text = repaired;
  }
  BytePairTable::Scratch scratch;
  for (const std::string_view slice : cut_slices(text)) encode_ordinary(slice, scratch, ids);
}

void Tokenizer::encode_control(std::string_view text, std::vector<int32_t>& ids) const {
  std::string repaired;
  if (!is_valid_utf8(text)) {
    repaired = replace_invalid_utf8(text);
    text = repaired;
  }
  BytePairTable::Scratch scratch;
  // Slices first, markers second, as the published tokenizer does it.
  for (const std::string_view slice : cut_slices(text)) {
    size_t at = 0;
    while (const std::optional<Match> match = next_special(slice, at)) {
      encode_ordinary(slice.substr(at, match->at - at), scratch, ids);
      ids.push_back(match->id);
      at = match->at + match->size;
    }
    encode_ordinary(slice.substr(at), scratch, ids);
  }
}

std::vector<int32_t> Tokenizer::encode_text(std::string_view text) const {
  std::vector<int32_t> ids;
  encode_text(text, ids);
  return ids;
}

std::vector<int32_t> Tokenizer::encode_control(std::string_view text) const {
  std::vector<int32_t> ids;
  encode_control(text, ids);
  return ids;
}

bool Tokenizer::is_hidden(int32_t id) const {
  return is_special(id) && specials_[static_cast<size_t>(id - base_size())].hidden;
}

std::optional<int32_t> Tokenizer::special_id(std::string_view spelling) const {
  if (spelling.empty()) return std::nullopt;
  for (const int32_t i : by_first_[static_cast<unsigned char>(spelling[0])]) {
    if (specials_[static_cast<size_t>(i)].spelling == spelling) return base_size() + i;
  }
  return std::nullopt;
}

Result<std::string_view> Tokenizer::token_bytes(int64_t id) const {
  if (!has_id(id)) {
    return out_of_range("token id {} is outside the vocabulary of {} ids (0 to {})", id,
                        vocab_size(), vocab_size() - 1);
  }
  const int32_t small = static_cast<int32_t>(id);
  if (is_special(small)) {
    return std::string_view(specials_[static_cast<size_t>(small - base_size())].spelling);
  }
  return table_.bytes(small);
}

Result<std::string> Tokenizer::decode(std::span<const int32_t> ids, DecodeOptions options) const {
  std::string bytes;
  for (const int32_t id : ids) {
    if (options.skip_hidden && is_hidden(id)) continue;
    const Result<std::string_view> token = token_bytes(id);
    if (!token.ok()) return token.error();
    bytes += *token;
  }
  return replace_invalid_utf8(bytes);
}

}  // namespace perigee::text
