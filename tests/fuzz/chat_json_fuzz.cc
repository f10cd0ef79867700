// Any bytes as the body of a chat request: an answer or one sentence; JSON survives its own printer.
#include <string_view>

#include "text/chat.h"
#include "text/testing.h"
#include "text/utf8.h"

using namespace perigee;
using namespace perigee::text;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const Result<Json> body = parse_json(input, "body");
  if (!body.ok()) {
    CHECK(is_valid_utf8(body.error().message));
    return 0;
  }
  for (const JsonStyle& style : {kJsonDefault, kJsonCompact}) {
    const std::string printed = print_json(*body, style);
    const Result<Json> again = parse_json(printed, "printed");
    CHECK(again.ok());
    CHECK_EQ(print_json(*again, style), printed);
  }
  const Result<ChatRequest> request = parse_chat_request(*body);
  if (!request.ok()) {
    CHECK(!request.error().message.empty());
    return 0;
  }
  const std::vector<Segment> segments = render_chat(*request);
  for (const Segment& segment : segments) CHECK(!segment.text.empty());
  CHECK(encode_segments(testing::tiny_tokenizer(), segments).ok());
  return 0;
}
