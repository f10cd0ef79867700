// A turn of an assistant made of the input's parts: what the renderer writes, the output parser reads back.
#include <algorithm>
#include <string_view>

#include "text/chat.h"
#include "text/output_parser.h"
#include "text/testing.h"

using namespace perigee;
using namespace perigee::text;

namespace {

// The next part of the input; parts end at a zero byte.
std::string take(std::string_view& input) {
  const size_t end = std::min(input.find('\0'), input.size());
  const std::string part = replace_invalid_utf8(input.substr(0, end));
  input.remove_prefix(std::min(end + 1, input.size()));
  return part;
}

Message assistant_of(std::string_view& input) {
  Message message;
  message.role = Role::kAssistant;
  message.reasoning = take(input);
  message.content = {take(input)};
  while (!input.empty() && message.tool_calls.size() < 4) {
    ToolCall& call = message.tool_calls.emplace_back();
    call.name = fmt::format("f{}", replace_invalid_utf8(take(input).substr(0, 64)));
    std::string key = take(input).substr(0, 64);
    const std::string value = take(input);
    const Result<Json> parsed = parse_json(value, "value");
    call.arguments =
        Json::object({{replace_invalid_utf8(key), parsed.ok() ? *parsed : Json::string(value)}});
  }
  return message;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  xtml::parse_header(input);
  CHECK_EQ(xtml::unescape_attribute(xtml::escape_attribute(input)), input);

  const Tokenizer& tokenizer = testing::tiny_tokenizer();
  ChatRequest request = single_user_message(input);
  const std::vector<Segment> before = render_chat(request);
  request.messages.push_back(assistant_of(input));
  const Message& said = request.messages.back();
  std::vector<Segment> all = render_chat(request);

  const std::vector<int32_t> ids = *encode_segments(tokenizer, all);
  const auto specials =
      std::count_if(ids.begin(), ids.end(), [&](int32_t id) { return tokenizer.is_special(id); });
  CHECK_EQ(specials, std::count_if(all.begin(), all.end(),
                                   [](const Segment& segment) { return segment.is_control; }));

  // The turn starts where the first prompt ended: both have the same segments up to there.
  CHECK(std::equal(before.begin(), before.end(), all.begin()));
  all.erase(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(before.size()));
  const ParsedOutput output =
      *parse_output(tokenizer, {}, *encode_segments(tokenizer, all), StopCause::kLength);
  CHECK_EQ(output.reasoning, is_blank(said.reasoning) ? std::string() : said.reasoning);
  CHECK_EQ(output.content.value_or(""), said.content[0]);
  CHECK_EQ(output.tool_calls.size(), said.tool_calls.size());
  for (size_t i = 0; i < output.tool_calls.size(); ++i) {
    CHECK_EQ(output.tool_calls[i].name, said.tool_calls[i].name);
    const Json arguments = *parse_json(output.tool_calls[i].arguments_json, "arguments");
    CHECK_EQ(print_json(arguments), print_json(said.tool_calls[i].arguments));
  }
  return 0;
}
