#include "text/tokenizer.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <ctime>

#include "base/rng.h"
#include "text/pretokenizer.h"
#include "text/testing.h"
#include "text/utf8.h"

namespace perigee::text {
namespace {

using testing::demo_tokenizer;
using testing::read_golden;
using testing::tiny_tokenizer;
using Ids = std::vector<int32_t>;

std::string digest(std::string_view bytes) {
  return fmt::format("{:016x}", hash_name(bytes));
}

std::string id_digest(const Ids& ids) {
  std::string list;
  for (const int32_t id : ids) {
    if (!list.empty()) list += ',';
    list += std::to_string(id);
  }
  return digest(list);
}

Ids ids_of(const Json& list) {
  Ids ids;
  for (const Json& item : list.items()) ids.push_back(static_cast<int32_t>(*item.as_int64()));
  return ids;
}

std::string repeated(std::string_view unit, size_t times) {
  std::string text;
  for (size_t i = 0; i < times; ++i) text += unit;
  return text;
}

// Any bytes at all, with markers, spaces and multi-byte characters more often than chance has them.
rc::Gen<std::string> any_text() {
  const auto part = rc::gen::oneOf(
      rc::gen::arbitrary<std::string>(),
      rc::gen::element<std::string>("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>", "[EOS]",
                                    "the ", "   ", "\n\n", "\r\n", "é", "你好", "🙂", "e\u0301",
                                    "\xF0\x9F", "\xED\xA0\x80", "aaaa", "It's",
                                    "<|reserved_token_1800|>", "1234567", "ABCdef"));
  return rc::gen::map(rc::gen::container<std::vector<std::string>>(part),
                      [](const std::vector<std::string>& parts) {
                        std::string text;
                        for (const std::string& one : parts) text += one;
                        return text;
                      });
}

// The merge rule in its plainest form: look at all neighbours, join the leftmost of the lowest
// rank, again.
Ids naive_merge(const BytePairTable& table, std::string_view piece) {
  if (piece.empty()) return {};
  if (table.find(piece) >= 0) return {table.find(piece)};
  std::vector<std::string> parts;
  for (const char byte : piece) parts.emplace_back(1, byte);
  while (true) {
    int32_t best = -1;
    size_t at = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const int32_t rank = table.find(parts[i] + parts[i + 1]);
      if (rank >= 0 && (best < 0 || rank < best)) {
        best = rank;
        at = i;
      }
    }
    if (best < 0) break;
    parts[at] += parts[at + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
  Ids ids;
  for (const std::string& part : parts) ids.push_back(table.find(part));
  return ids;
}

TEST(TokenizerGolden, WasMadeForThisTokenizerFile) {
  const Result<std::string> model = read_file(PERIGEE_SOURCE_DIR "/models/demo/tiktoken.model");
  ASSERT_TRUE(model.ok());
  EXPECT_EQ(read_golden("tokenizer.json").find("tokenizer_fnv1a")->as_string(), digest(*model))
      << "run tools/golden/make_text_golden.py";
}

TEST(TokenizerGolden, PiecesAndIdsAreThoseOfTiktoken) {
  const Json golden = read_golden("tokenizer.json");
  ASSERT_GT(golden.find("cases")->items().size(), 300u);
  for (const Json& item : golden.find("cases")->items()) {
    const std::string& text = item.find("text")->as_string();
    std::vector<std::string_view> pieces;
    split_pieces(text, pieces);
    Ids sizes;
    for (const std::string_view piece : pieces) sizes.push_back(static_cast<int32_t>(piece.size()));
    EXPECT_EQ(sizes, ids_of(*item.find("pieces"))) << text;
    EXPECT_EQ(demo_tokenizer().encode_text(text), ids_of(*item.find("ids"))) << text;
    EXPECT_EQ(demo_tokenizer().encode_control(text), ids_of(*item.find("control_ids"))) << text;
  }
}

TEST(TokenizerGolden, LongRunsAndSlicesAreCutAsThePublishedTokenizerCutsThem) {
  const Json golden = read_golden("tokenizer.json");
  for (const Json& item : golden.find("long")->items()) {
    const std::string& unit = item.find("unit")->as_string();
    const std::string text = repeated(unit, static_cast<size_t>(*item.find("times")->as_int64()));
    const Ids ids = demo_tokenizer().encode_text(text);
    EXPECT_EQ(static_cast<int64_t>(ids.size()), *item.find("count")->as_int64()) << unit;
    EXPECT_EQ(id_digest(ids), item.find("fnv1a")->as_string()) << unit;
    const Ids control = demo_tokenizer().encode_control(text);
    EXPECT_EQ(static_cast<int64_t>(control.size()), *item.find("control_count")->as_int64())
        << unit;
    EXPECT_EQ(id_digest(control), item.find("control_fnv1a")->as_string()) << unit;
  }
}

TEST(Tokenizer, KnowsSpecialTokensOfTheConfigAndNamesTheOthersReserved) {
  const Tokenizer& tokenizer = demo_tokenizer();
  const int32_t base = tokenizer.base_size();
  EXPECT_EQ(tokenizer.vocab_size(), base + 256);
  EXPECT_EQ(tokenizer.special_id("[BOS]"), base);
  EXPECT_EQ(tokenizer.special_id("<|end_of_msg|>"), base + 2);
  EXPECT_EQ(tokenizer.special_id("<|open|>"), base + 3);
  EXPECT_EQ(tokenizer.special_id("[PAD]"), base + 255);
  EXPECT_EQ(tokenizer.special_id(fmt::format("<|reserved_token_{}|>", base + 8)), base + 8);
  EXPECT_EQ(tokenizer.special_id(fmt::format("<|reserved_token_{}|>", base + 255)), std::nullopt);
  EXPECT_EQ(tokenizer.special_id("<|im_end|>"), std::nullopt);
  EXPECT_EQ(tokenizer.special_id(""), std::nullopt);
}

TEST(Tokenizer, XtmlMarkersSurviveSkippingOfSpecialTokens) {
  const Tokenizer& tokenizer = demo_tokenizer();
  for (const char* marker : {"<|open|>", "<|close|>", "<|sep|>"}) {
    EXPECT_FALSE(tokenizer.is_hidden(*tokenizer.special_id(marker))) << marker;
  }
  EXPECT_TRUE(tokenizer.is_hidden(*tokenizer.special_id("<|end_of_msg|>")));
  const Ids ids = tokenizer.encode_control("a<|open|>b<|end_of_msg|>c");
  EXPECT_EQ(*tokenizer.decode(ids), "a<|open|>b<|end_of_msg|>c");
  EXPECT_EQ(*tokenizer.decode(ids, {.skip_hidden = true}), "a<|open|>bc");
}

TEST(Tokenizer, IdsBeyondTheVocabularyAreRefused) {
  const Tokenizer& tokenizer = demo_tokenizer();
  for (const int64_t id :
       {int64_t{-1}, int64_t{tokenizer.vocab_size()}, int64_t{163840}, int64_t{1} << 40}) {
    const Result<std::string_view> bytes = tokenizer.token_bytes(id);
    ASSERT_FALSE(bytes.ok()) << id;
    EXPECT_EQ(bytes.error().code, ErrorCode::kOutOfRange);
  }
  const Ids ids = {1, tokenizer.vocab_size()};
  EXPECT_FALSE(tokenizer.decode(ids).ok());
}

TEST(Tokenizer, EntriesOfTheConfigBeyondTheSpecialIdsMeanNothing) {
  const std::vector<std::string> tokens = testing::byte_tokens();
  const std::string config =
      R"({"added_tokens_decoder": {"258": {"content": "<|end_of_msg|>"}, "512": {"content": "<|im_end|>"}}})";
  const Result<Tokenizer> tokenizer =
      Tokenizer::parse(testing::model_file(tokens), "m", config, "c");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  EXPECT_EQ(tokenizer->vocab_size(), 512);
  EXPECT_EQ(tokenizer->special_id("<|im_end|>"), std::nullopt);
  EXPECT_EQ(tokenizer->encode_control("<|im_end|>").size(), 10u);
  EXPECT_TRUE(tokenizer->is_hidden(258));  // `special` defaults to true
}

TEST(Tokenizer, BytesThatAreNotUtf8AreReadAsReplacementCharacters) {
  const Tokenizer& tokenizer = demo_tokenizer();
  EXPECT_EQ(tokenizer.encode_text("a\xFF\xED\xA0\x80z"),
            tokenizer.encode_text("a\uFFFD\uFFFD\uFFFD\uFFFDz"));
  EXPECT_EQ(tokenizer.encode_control("\xF0\x9F<|sep|>"), tokenizer.encode_control("\uFFFD<|sep|>"));
}

TEST(Tokenizer, OneMegabyteOfOneClassEncodesInLessThanTwoSeconds) {
  for (const std::string unit :
       {"a", " ", "\n", "A", "7", "-", "好", "e\u0301", "aA", "\t ", "🙂"}) {
    const std::string text = repeated(unit, (1u << 20) / unit.size());
    const std::clock_t start = std::clock();  // of the processor: other programs may be busy
    const Ids ids = demo_tokenizer().encode_text(text);
    EXPECT_LT(std::clock() - start, 2 * CLOCKS_PER_SEC) << unit;
    EXPECT_EQ(*demo_tokenizer().decode(ids), text) << unit;
  }
}

TEST(Slices, AreCutByCharactersNotBytes) {
  EXPECT_EQ(cut_slices("ééééé", 2, 100), (std::vector<std::string_view>{"éé", "éé", "é"}));
  EXPECT_EQ(cut_slices("aaaaa  b", 100, 3), (std::vector<std::string_view>{"aaa", "aa  b"}));
  EXPECT_EQ(cut_slices("aaaaa", 3, 2), (std::vector<std::string_view>{"aa", "a", "aa"}));
  EXPECT_TRUE(cut_slices("").empty());
}

RC_GTEST_PROP(TokenizerProperty, DecodeOfEncodeIsTheTextWithInvalidBytesReplaced, ()) {
  const std::string text = *any_text();
  for (const Tokenizer* tokenizer : {&demo_tokenizer(), &tiny_tokenizer()}) {
    RC_ASSERT(*tokenizer->decode(tokenizer->encode_text(text)) == replace_invalid_utf8(text));
    RC_ASSERT(*tokenizer->decode(tokenizer->encode_control(text)) == replace_invalid_utf8(text));
  }
}

RC_GTEST_PROP(TokenizerProperty, UserTextNeverYieldsControlIds, ()) {
  const std::string text = *any_text();
  for (const Tokenizer* tokenizer : {&demo_tokenizer(), &tiny_tokenizer()}) {
    for (const int32_t id : tokenizer->encode_text(text))
      RC_ASSERT(id >= 0 && id < tokenizer->base_size());
  }
}

// Random merge tables, also ones in which a token cannot be reached by merges, against the plain
// rule.
RC_GTEST_PROP(TokenizerProperty, MergesAreThoseOfTheNaiveRule, ()) {
  const auto letters = rc::gen::container<std::string>(rc::gen::element('a', 'b', 'c'));
  std::vector<std::string> tokens = testing::byte_tokens();
  const auto merges =
      *rc::gen::container<std::vector<std::string>>(40, rc::gen::resize(6, letters));
  for (const std::string& merge : merges) {
    if (!merge.empty() && std::find(tokens.begin(), tokens.end(), merge) == tokens.end())
      tokens.push_back(merge);
  }
  const Result<BytePairTable> table = BytePairTable::parse(testing::model_file(tokens), "random");
  RC_ASSERT(table.ok());
  BytePairTable::Scratch scratch;
  for (const size_t size : {size_t{3}, size_t{20}, size_t{48}, size_t{49}, size_t{300}}) {
    const std::string piece =
        *rc::gen::container<std::string>(size, rc::gen::element('a', 'b', 'c'));
    Ids ids;
    table->encode_piece(piece, scratch, ids);
    RC_ASSERT(ids == naive_merge(*table, piece));
  }
}

RC_GTEST_PROP(TokenizerProperty, PiecesAndSlicesPutTogetherAreTheText, ()) {
  const std::string text = replace_invalid_utf8(*any_text());
  const size_t slice_chars = *rc::gen::inRange<size_t>(1, 20),
               run_chars = *rc::gen::inRange<size_t>(1, 8);
  std::string joined;
  for (const std::string_view slice : cut_slices(text, slice_chars, run_chars)) {
    RC_ASSERT(is_valid_utf8(slice));
    std::vector<std::string_view> pieces;
    split_pieces(slice, pieces);
    for (const std::string_view piece : pieces) {
      RC_ASSERT(!piece.empty());
      joined += piece;
    }
  }
  RC_ASSERT(joined == text);
}

// Each row: what is wrong with the file, and a part of the sentence.
TEST(TokenizerFiles, MalformedModelFilesGetOneSentenceWithFileAndLine) {
  const std::string good = testing::model_file(testing::byte_tokens());
  const auto with_line = [&](const std::string& line) { return good + line + "\n"; };
  const std::vector<std::pair<std::string, std::string>> rows = {
      {with_line("YWI="), "bad.model: line 257"},
      {with_line("YWI= x"), "bad.model: line 257"},
      {with_line("YWI= 256 7"), "bad.model: line 257"},
      {with_line("YW*= 256"), "bad.model: line 257"},
      {with_line("YWI 256"), "bad.model: line 257"},
      {with_line(" 256"), "bad.model: line 257"},
      {with_line("YWI= -1"), "bad.model: line 257"},
      {with_line("YWI= 99999999999"), "bad.model: line 257"},
      {with_line("YWI= 2000000000"), "rank 2000000000"},
      {with_line("YWI= 258"), "no line has rank 256"},
      {with_line("YWI= 7"), "line 257 repeats rank 7 of line 8"},
      {with_line("AA== 256"), "line 257 repeats the token of line 1"},
      {"", "no token stands for the single byte 0x00"},
  };
  for (const auto& [text, part] : rows) {
    const Result<Tokenizer> tokenizer =
        Tokenizer::parse(text, "bad.model", testing::config_file(256), "c");
    ASSERT_FALSE(tokenizer.ok()) << part;
    EXPECT_NE(tokenizer.error().message.find(part), std::string::npos) << tokenizer.error().message;
  }
}

TEST(TokenizerFiles, MalformedConfigFilesGetOneSentence) {
  const std::string model = testing::model_file(testing::byte_tokens());
  const std::vector<std::pair<std::string, std::string>> rows = {
      {"{", "bad.json is not valid JSON at line 1"},
      {"[]", "must be an object, not an array"},
      {"{}", "`added_tokens_decoder` must be an object"},
      {R"({"added_tokens_decoder": {"x": {"content": "y"}}})", "key \"x\""},
      {R"({"added_tokens_decoder": {"255": {"content": "y"}}})",
       "key \"255\", which is no id from 256 on"},
      {R"({"added_tokens_decoder": {"256": {"content": 7}}})", "token 256 needs a `content`"},
      {R"({"added_tokens_decoder": {"256": {"content": ""}}})", "token 256 needs a `content`"},
      {R"({"added_tokens_decoder": {"256": {"content": "x", "special": 1}}})",
       "`special` of token 256"},
      {R"({"added_tokens_decoder": {"256": {"content": "x"}, "257": {"content": "x"}}})",
       "same content \"x\""},
  };
  for (const auto& [config, part] : rows) {
    const Result<Tokenizer> tokenizer = Tokenizer::parse(model, "m", config, "bad.json");
    ASSERT_FALSE(tokenizer.ok()) << part;
    EXPECT_NE(tokenizer.error().message.find(part), std::string::npos) << tokenizer.error().message;
  }
}

TEST(TokenizerFiles, AMissingFileIsNamed) {
  const Result<Tokenizer> tokenizer = Tokenizer::load("/nowhere");
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_NE(tokenizer.error().message.find("/nowhere/tiktoken.model"), std::string::npos);
}

}  // namespace
}  // namespace perigee::text
