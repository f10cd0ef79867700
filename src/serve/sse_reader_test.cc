// Events however the bytes are cut and the lines are ended; what is no event.
#include "serve/sse_reader.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

namespace perigee::serve {
namespace {

using Events = std::vector<SseEvent>;

Events read(const std::vector<std::string_view>& pieces) {
  SseReader reader;
  Events events;
  for (const std::string_view piece : pieces) EXPECT_TRUE(reader.feed(piece, events).ok());
  return events;
}
Events read(std::string_view text) { return read(std::vector{text}); }

TEST(SseReader, ReadsFieldsOfEvents) {
  EXPECT_EQ(read("data: a\n\n"), (Events{{"", "a"}}));
  EXPECT_EQ(read("data:a\ndata:  b\ndata\n\n"), (Events{{"", "a\n b\n"}}));
  EXPECT_EQ(read("event: error\nid: 7\nretry: 10\nother: x\ndata: a: b\n\ndata: c\n\n"), (Events{{"error", "a: b"}, {"", "c"}}));
  EXPECT_EQ(read("\xEF\xBB\xBF" "data: a\n\ndata: \xEF\xBB\xBF\n\n"), (Events{{"", "a"}, {"", "\xEF\xBB\xBF"}}));
}

TEST(SseReader, PassesOverWhatIsNoEvent) {
  EXPECT_EQ(read(": keep-alive\n\n:\n\n\n\n"), Events{});
  EXPECT_EQ(read("event: ping\n\ndata: a\n\n"), (Events{{"", "a"}}));  // a name without data
  EXPECT_EQ(read("data: a\n: between\ndata: b\n\n"), (Events{{"", "a\nb"}}));
  EXPECT_EQ(read("datax: a\n data: b\n\n"), Events{});
  EXPECT_EQ(read("data: a\n\ndata: [DONE]\n"), (Events{{"", "a"}}));  // its blank line never came
}

// The same events whatever ends the lines, at every pair of cuts.
TEST(SseReader, CutsAtEveryByteChangeNothing) {
  const Events expected = {{"", "one\ntwo"}, {"error", "\xE2\x82\xAC"}, {"", "[DONE]"}};
  for (const std::string end : {"\n", "\r\n", "\r"}) {
    std::string text;
    for (const std::string line :
         {":c", "data: one", "data: two", "", "event: error", "data: \xE2\x82\xAC", "", "data: [DONE]", ""}) {
      text += line + end;
    }
    const std::string_view all = text;
    for (size_t i = 0; i <= all.size(); ++i) {
      for (size_t j = i; j <= all.size(); ++j)
        ASSERT_EQ(read({all.substr(0, i), all.substr(i, j - i), all.substr(j)}), expected) << i << ' ' << j;
    }
    std::vector<std::string_view> bytes;
    for (size_t i = 0; i < all.size(); ++i) bytes.push_back(all.substr(i, 1));
    EXPECT_EQ(read(bytes), expected);
  }
}

RC_GTEST_PROP(SseReader, WhatIsWrittenIsRead, ()) {
  const auto word = rc::gen::container<std::string>(rc::gen::element('a', ':', ' ', '\xC3', '{'));
  const auto lines = rc::gen::nonEmpty(rc::gen::container<std::vector<std::string>>(word));
  const auto all = *rc::gen::container<std::vector<std::vector<std::string>>>(lines);
  std::string text;
  Events expected;
  const auto end_line = [&] { text += *rc::gen::element<std::string>("\n", "\r\n"); };
  for (const auto& event : all) {
    SseEvent& wanted = expected.emplace_back();
    for (size_t i = 0; i < event.size(); ++i) {
      text += "data: " + event[i];
      end_line();
      wanted.data += (i > 0 ? "\n" : "") + event[i];
    }
    if (*rc::gen::arbitrary<bool>()) {
      text += ": comment";
      end_line();
    }
    end_line();
  }
  std::vector<std::string_view> pieces;
  std::string_view rest = text;
  while (!rest.empty()) {
    const size_t n = std::min(rest.size(), *rc::gen::inRange<size_t>(1, 9));
    pieces.push_back(rest.substr(0, n));
    rest.remove_prefix(n);
  }
  RC_ASSERT(read(pieces) == expected);
}

TEST(SseReader, AnEventWithoutEndIsRefused) {
  SseReader reader;
  Events events;
  const std::string line = "data: " + std::string(1 << 20, 'x') + "\n";
  Status fed;
  size_t bytes = 0;
  while (fed.ok() && bytes < 2 * kSseEventBytesMax) {
    fed = reader.feed(line, events);
    bytes += line.size();
  }
  ASSERT_FALSE(fed.ok());
  EXPECT_NE(fed.error().message.find("bytes"), std::string::npos);
  EXPECT_LE(bytes, kSseEventBytesMax + 2 * line.size());
}

}  // namespace
}  // namespace perigee::serve
