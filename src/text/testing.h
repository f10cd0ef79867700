// What    What tests and fuzz targets of the text room share: golden files, the demo model's
// tokenizer, a tiny one. Owner   text; not for programs. Threads Functions are pure after the first
// call. Errors  A missing file aborts with its path. Source  tools/golden/make_text_golden.py
// writes the golden files.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "text/json.h"
#include "text/tokenizer.h"

namespace perigee::text::testing {

inline Json read_golden(const std::string& name) {
  const std::string path = std::string(PERIGEE_SOURCE_DIR "/tests/golden/text/") + name;
  const Result<std::string> text = read_file(path);
  if (!text.ok()) check_failed(__FILE__, __LINE__, text.error().message);
  Result<Json> golden = parse_json(*text, path);
  if (!golden.ok()) check_failed(__FILE__, __LINE__, golden.error().message);
  return std::move(*golden);
}

inline const Tokenizer& demo_tokenizer() {
  static const Result<Tokenizer> tokenizer = Tokenizer::load(PERIGEE_SOURCE_DIR "/models/demo");
  if (!tokenizer.ok()) check_failed(__FILE__, __LINE__, tokenizer.error().message);
  return *tokenizer;
}

inline std::string to_base64(std::string_view bytes) {
  static constexpr std::string_view kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t at = 0; at < bytes.size(); at += 3) {
    uint32_t bits = 0;
    for (size_t k = 0; k < 3; ++k) {
      bits = (bits << 8) | (at + k < bytes.size() ? static_cast<unsigned char>(bytes[at + k]) : 0u);
    }
    for (size_t k = 0; k < 4; ++k) {
      out += at + k > bytes.size() ? '=' : kAlphabet[(bits >> (18 - 6 * k)) & 63];
    }
  }
  return out;
}

inline std::string model_file(const std::vector<std::string>& tokens) {
  std::string text;
  for (size_t rank = 0; rank < tokens.size(); ++rank) {
    text += to_base64(tokens[rank]) + " " + std::to_string(rank) + "\n";
  }
  return text;
}

inline std::vector<std::string> byte_tokens() {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  return tokens;
}

// K3's special tokens after `base` ordinary ones.
inline std::string config_file(int base) {
  const auto entry = [&](int offset, std::string_view content, bool special) {
    return fmt::format("\"{}\": {{\"content\": \"{}\", \"special\": {}}}", base + offset, content,
                       special);
  };
  return "{\"added_tokens_decoder\": {" + entry(0, "[BOS]", true) + ", " + entry(1, "[EOS]", true) +
         ", " + entry(2, "<|end_of_msg|>", true) + ", " + entry(3, "<|open|>", false) + ", " +
         entry(4, "<|close|>", false) + ", " + entry(5, "<|sep|>", false) + ", " +
         entry(255, "[PAD]", true) + "}}";
}

// Bytes and a few merges, some of them across the middle of characters.
inline const Tokenizer& tiny_tokenizer() {
  static const Tokenizer tokenizer = [] {
    std::vector<std::string> tokens = byte_tokens();
    for (const char* merge : {"th",       "in",       "the", " t",  "aa",       "aaa",
                              "aaaa",     "ab",       "ba",  "  ",  "    ",     "\n\n",
                              "res",      "think",    "{\"", "\":", "\xF0\x9F", "\x99\x82",
                              "\xC3\xA9", "\xE4\xBD", "|>",  "<|"}) {
      tokens.emplace_back(merge);
    }
    Result<Tokenizer> made =
        Tokenizer::parse(model_file(tokens), "tiny.model",
                         config_file(static_cast<int>(tokens.size())), "tiny.json");
    if (!made.ok()) check_failed(__FILE__, __LINE__, made.error().message);
    return std::move(*made);
  }();
  return tokenizer;
}

}  // namespace perigee::text::testing
