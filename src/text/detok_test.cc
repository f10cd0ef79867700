#include "text/detok.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "text/testing.h"
#include "text/utf8.h"

namespace perigee::text {
namespace {

using testing::tiny_tokenizer;

std::vector<int32_t> byte_ids(std::string_view bytes) {
  std::vector<int32_t> ids;
  for (const char byte : bytes) ids.push_back(static_cast<unsigned char>(byte));
  return ids;
}

TEST(Utf8, InvalidPartsAreReplacedAsPythonReplacesThem) {
  const std::vector<std::pair<std::string_view, std::string_view>> rows = {
      {"ok é 你 🙂", "ok é 你 🙂"},
      {"\x80", "\uFFFD"},
      {"\xC0\xAF", "\uFFFD\uFFFD"},                      // overlong
      {"\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD"},            // a surrogate
      {"\xF4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},  // beyond U+10FFFF
      {"\xF5z", "\uFFFDz"},
      {"\xF0\x9F\x99", "\uFFFD"},  // one replacement for a good beginning
      {"\xF0\x9Fx\x99\x82", "\uFFFDx\uFFFD\uFFFD"},
      {"\xE4\xBD\xE4\xBD\xA0", "\uFFFD你"},
      {"\xC3", "\uFFFD"},
  };
  for (const auto& [bytes, text] : rows) EXPECT_EQ(replace_invalid_utf8(bytes), text);
}

TEST(Utf8, EveryCodePointIsReadAsItself) {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    std::string bytes;
    if (c < 0x80) {
      bytes = {static_cast<char>(c)};
    } else if (c < 0x800) {
      bytes = {static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 63))};
    } else if (c < 0x10000) {
      bytes = {static_cast<char>(0xE0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 63)),
               static_cast<char>(0x80 | (c & 63))};
    } else {
      bytes = {static_cast<char>(0xF0 | c >> 18), static_cast<char>(0x80 | (c >> 12 & 63)),
               static_cast<char>(0x80 | (c >> 6 & 63)), static_cast<char>(0x80 | (c & 63))};
    }
    const Utf8Step step = utf8_step(bytes, 0);
    const bool is_surrogate = c >= 0xD800 && c < 0xE000;
    ASSERT_EQ(step.kind == Utf8Step::Kind::kValid, !is_surrogate) << static_cast<uint32_t>(c);
    if (is_surrogate) continue;
    ASSERT_EQ(step.code_point, c);
    ASSERT_EQ(step.bytes, bytes.size());
  }
}

TEST(Utf8, BlankMeansPythonsWhiteSpace) {
  EXPECT_TRUE(is_blank(""));
  EXPECT_TRUE(is_blank(" \t\r\n\x1C\x1F\u0085\u00A0\u2003\u3000"));
  EXPECT_FALSE(is_blank(" x"));
  EXPECT_FALSE(is_blank("\u200B"));
  EXPECT_FALSE(is_blank("\u180E"));
}

TEST(Detokenizer, AnEmojiSplitOverFourTokensComesOutWhole) {
  Detokenizer detokenizer(tiny_tokenizer());
  const std::vector<std::string> expected = {"", "", "", "🙂"};
  const std::vector<int32_t> ids = byte_ids("🙂");
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(*detokenizer.push(ids[i]), expected[i]);
  EXPECT_EQ(detokenizer.flush(), "");
}

TEST(Detokenizer, HalfACharacterAtTheEndIsOneReplacementOnce) {
  Detokenizer detokenizer(tiny_tokenizer());
  for (const int32_t id : byte_ids("\xF0\x9F\x99")) EXPECT_EQ(*detokenizer.push(id), "");
  EXPECT_EQ(detokenizer.flush(), "\uFFFD");
  EXPECT_EQ(detokenizer.flush(), "");
}

TEST(Detokenizer, HiddenTokensAreLeftOutAndMarkersStay) {
  const Tokenizer& tokenizer = tiny_tokenizer();
  const std::vector<int32_t> ids = tokenizer.encode_control("a[EOS]<|sep|>b");
  Detokenizer plain(tokenizer), all(tokenizer, {.skip_hidden = false});
  std::string plain_text, all_text;
  for (const int32_t id : ids) {
    plain_text += *plain.push(id);
    all_text += *all.push(id);
  }
  EXPECT_EQ(plain_text, "a<|sep|>b");
  EXPECT_EQ(all_text, "a[EOS]<|sep|>b");
}

TEST(Detokenizer, IdsBeyondTheVocabularyAreRefusedAndChangeNothing) {
  Detokenizer detokenizer(tiny_tokenizer());
  EXPECT_EQ(*detokenizer.push(0xC3), "");
  EXPECT_FALSE(detokenizer.push(tiny_tokenizer().vocab_size()).ok());
  EXPECT_FALSE(detokenizer.push(-1).ok());
  EXPECT_EQ(*detokenizer.push(0xA9), "é");
}

RC_GTEST_PROP(DetokenizerProperty, DeltasAreWholeCharactersAndAddUpToTheWholeText, ()) {
  const Tokenizer& tokenizer = tiny_tokenizer();
  const auto ids = *rc::gen::container<std::vector<int32_t>>(
      rc::gen::oneOf(rc::gen::inRange<int32_t>(0, tokenizer.vocab_size()),
                     rc::gen::inRange<int32_t>(0x80, 0x100)));
  const bool skip_hidden = *rc::gen::arbitrary<bool>();
  Detokenizer detokenizer(tokenizer, {.skip_hidden = skip_hidden});
  std::string text;
  for (const int32_t id : ids) {
    const std::string delta = *detokenizer.push(id);
    RC_ASSERT(is_valid_utf8(delta));
    text += delta;
  }
  text += detokenizer.flush();
  RC_ASSERT(text == *tokenizer.decode(ids, {.skip_hidden = skip_hidden}));
}

}  // namespace
}  // namespace perigee::text
