#include "serve/stop_strings.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

namespace perigee::serve {
namespace {

struct Outcome {
  std::string text;
  std::optional<size_t> found;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

Outcome run(const std::vector<std::string>& stops, const std::vector<std::string>& pieces, bool include = false) {
  StopMatcher matcher(std::make_shared<const StopStrings>(stops));
  Outcome out;
  for (const std::string& piece : pieces) {
    out.found = matcher.push(piece, include, out.text);
    if (out.found.has_value()) return out;
  }
  matcher.flush(out.text);
  return out;
}

// Every end of every string at every place, in plain loops.
Outcome plain(const std::vector<std::string>& stops, const std::string& text, bool include) {
  for (size_t end = 1; end <= text.size(); ++end) {
    std::optional<size_t> best;
    for (size_t i = 0; i < stops.size(); ++i) {
      if (!std::string_view(text).substr(0, end).ends_with(stops[i])) continue;
      if (!best.has_value() || stops[i].size() > stops[*best].size()) best = i;
    }
    if (best.has_value()) return {text.substr(0, include ? end : end - stops[*best].size()), best};
  }
  return {text, std::nullopt};
}

TEST(StopStrings, AreFoundAcrossPiecesAndNeverLeakABeginning) {
  StopMatcher matcher(std::make_shared<const StopStrings>(std::vector<std::string>{"own fox"}));
  std::string out;
  EXPECT_FALSE(matcher.push("the br", false, out).has_value());
  EXPECT_EQ(out, "the br");
  EXPECT_FALSE(matcher.push("own", false, out).has_value());
  EXPECT_EQ(out, "the br") << "what can still become the string is held";
  EXPECT_TRUE(matcher.push(" fox jumps", false, out).has_value());
  EXPECT_EQ(out, "the br");
}

TEST(StopStrings, WhatCannotBecomeOneIsGivenOutAtOnce) {
  StopMatcher matcher(std::make_shared<const StopStrings>(std::vector<std::string>{"\n\nUser:"}));
  std::string out;
  matcher.push("a\n", false, out);
  EXPECT_EQ(out, "a");
  matcher.push("b\n\nUs", false, out);
  EXPECT_EQ(out, "a\nb");
  matcher.push("e it", false, out);
  EXPECT_EQ(out, "a\nb\n\nUse it");
}

TEST(StopStrings, AStringInsideAnotherIsFound) {
  EXPECT_EQ(run({"abcd", "bc"}, {"xabc"}), (Outcome{"xa", 1}));
  EXPECT_EQ(run({"c", "bc"}, {"xabc"}), (Outcome{"xa", 1})) << "of two that end together the longer";
  EXPECT_EQ(run({"STOP"}, {"a STOP b"}, true), (Outcome{"a STOP", 0}));
}

RC_GTEST_PROP(StopStringsProperty, EqualPlainSearchForEverySplit, ()) {
  const auto word =
      rc::gen::resize(4, rc::gen::nonEmpty(rc::gen::container<std::string>(rc::gen::element('a', 'b', 'c'))));
  const auto stops = *rc::gen::resize(4, rc::gen::nonEmpty(rc::gen::container<std::vector<std::string>>(word)));
  const auto pieces = *rc::gen::container<std::vector<std::string>>(word);
  const bool include = *rc::gen::arbitrary<bool>();
  std::string all;
  for (const std::string& piece : pieces) all += piece;
  const Outcome got = run(stops, pieces, include), wanted = plain(stops, all, include);
  RC_ASSERT(got.text == wanted.text);
  RC_ASSERT(got.found.has_value() == wanted.found.has_value());
  if (got.found.has_value()) RC_ASSERT(stops[*got.found] == stops[*wanted.found]);
}

}  // namespace
}  // namespace perigee::serve
