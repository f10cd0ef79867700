#include "bench/cpu/serve_stream.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace perigee::bench {
namespace {

using ::testing::HasSubstr;

const std::string kHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
const std::string kEnd = "0\r\n\r\n";

std::string chunk(const std::string& bytes) { return fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes); }
std::string event(const std::string& data) { return "data: " + data + "\n\n"; }
std::string text(const std::string& words) {
  return event(R"({"choices":[{"index":0,"text":")" + words + R"(","finish_reason":null}]})");
}
std::string finish(const std::string& reason) {
  return event(R"({"choices":[{"index":0,"text":"","finish_reason":")" + reason + R"("}]})");
}
std::string usage(int64_t tokens) { return event(fmt::format(R"({{"choices":[],"usage":{{"completion_tokens":{}}}}})", tokens)); }

std::string whole() {
  return kHead + chunk(text("ab") + text("c")) + chunk(finish("length")) + chunk(usage(2) + event("[DONE]")) + kEnd;
}

// The fault of an answer of two tokens, given in pieces of `piece` bytes; "unended" if it only lacks its end.
std::string fault_of(const std::string& answer, size_t piece = 1 << 20) {
  AnswerReader reader;
  reader.expect(2);
  for (size_t at = 0; at < answer.size(); at += piece) {
    if (!reader.feed(std::string_view(answer).substr(at, piece), {})) return reader.fault();
  }
  return reader.done() ? "" : "unended";
}

TEST(AnswerReader, TakesAWholeStreamHoweverItIsCut) {
  for (size_t piece = 1; piece <= whole().size(); ++piece) EXPECT_EQ(fault_of(whole(), piece), "") << piece;
}

TEST(AnswerReader, DigestIsOfTheTextAlone) {
  const auto digest_of = [](const std::string& body) {
    AnswerReader reader;
    reader.expect(2);
    EXPECT_TRUE(reader.feed(kHead + chunk(body), {})) << reader.fault();
    return reader.digest();
  };
  EXPECT_EQ(digest_of(text("ab") + text("c")), digest_of(text("a") + text("bc")));
  EXPECT_NE(digest_of(text("abc")), digest_of(text("abd")));
  const auto delta = [](const char* key) { return event(fmt::format(R"({{"choices":[{{"delta":{{"{}":"abc"}}}}]}})", key)); };
  EXPECT_EQ(digest_of(delta("content")), digest_of(text("abc")));
  EXPECT_EQ(digest_of(delta("reasoning")), digest_of(text("abc")));
}

TEST(AnswerReader, CountsPiecesWithText) {
  AnswerReader reader;
  reader.expect(2);
  ASSERT_TRUE(reader.feed(whole(), {})) << reader.fault();
  EXPECT_EQ(reader.pieces(), 2);
  EXPECT_TRUE(reader.done());
}

TEST(AnswerReader, EveryPrefixIsUnended) {
  const std::string answer = whole();
  for (size_t bytes = 0; bytes < answer.size(); ++bytes) EXPECT_EQ(fault_of(answer.substr(0, bytes)), "unended") << bytes;
}

TEST(AnswerReader, SeesWhatIsWrong) {
  const std::string good = text("ab");
  const std::string last = finish("length") + usage(2) + event("[DONE]");
  const std::vector<std::pair<std::string, std::string>> cases = {
      {kHead + chunk(good + finish("length") + usage(2)) + kEnd, "without [DONE]"},
      {kHead + chunk(good + usage(2) + event("[DONE]")) + kEnd, "before the finish reason"},
      {kHead + chunk(good + finish("length") + event("[DONE]")) + kEnd, "before the finish reason and the usage"},
      {kHead + chunk(good + finish("stop") + usage(2) + event("[DONE]")) + kEnd, "another reason"},
      {kHead + chunk(good + finish("length") + usage(3) + event("[DONE]")) + kEnd, "3 tokens instead of 2"},
      {kHead + chunk(finish("length") + good) + kEnd, "after the finish reason"},
      {kHead + chunk(last + good) + kEnd, "after [DONE]"},
      {kHead + chunk(last + "data: ") + kEnd, "is cut"},
      {kHead + chunk("date: {}\n\n"), "does not begin with"},
      {kHead + chunk(event("{\"choices\":[")), "no chunk"},
      {kHead + chunk(event(R"({"error":{"message":"broken"}})")), "broken"},
      {kHead + "zz\r\n", "length is malformed"},
      {kHead + "2\r\nabcd", "longer than its length"},
      {whole() + "x", "after the end"},
      {"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 2\r\n\r\n{}", "503"},
      {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "no stream of events"},
  };
  for (const auto& [answer, why] : cases) {
    EXPECT_THAT(fault_of(answer), HasSubstr(why)) << answer;
    EXPECT_THAT(fault_of(answer, 1), HasSubstr(why)) << answer;
  }
}

TEST(AnswerReader, TakesWholeAnswersOneAfterTheOther) {
  AnswerReader reader;
  for (const std::string body : {"", "{}", "{\"a\":1}"}) {
    reader.expect(0);
    EXPECT_TRUE(reader.feed(fmt::format("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{}", body.size(), body), {}));
    EXPECT_TRUE(reader.done());
  }
  reader.expect(0);
  EXPECT_FALSE(reader.feed("HTTP/1.1 200 OK\r\n\r\n", {}));
}

}  // namespace
}  // namespace perigee::bench
