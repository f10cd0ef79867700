// Any bytes as another server's stream of chunks: the same events and the same sentence however the bytes are cut; and any bytes
// as a whole answer or as an error's body.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "serve/chat_reader.h"

using namespace perigee;
using namespace perigee::serve;

namespace {

struct Seen {
  std::vector<text::OutputEvent> events;
  std::string error;
  bool done = false;

  friend bool operator==(const Seen&, const Seen&) = default;
};

Seen read_all(std::string_view input, size_t step) {
  ChatReader reader;
  Seen seen;
  Status status;
  while (!input.empty() && status.ok()) {
    status = reader.feed(input.substr(0, step), seen.events);
    input.remove_prefix(std::min(step, input.size()));
  }
  if (status.ok()) status = reader.finish();
  if (!status.ok()) seen.error = status.error().message;
  seen.done = reader.done();
  std::string content;
  for (const text::OutputEvent& event : seen.events) {
    if (event.kind == text::OutputEvent::Kind::kContent) content += event.text;
  }
  CHECK_EQ(content, reader.answer().content);
  return seen;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  CHECK(read_all(input, size + 1) == read_all(input, 1 + (size > 0 ? data[0] % 7 : 0)));
  std::vector<text::OutputEvent> events;
  const Status whole = ChatReader().read_whole(input, events);
  CHECK(whole.ok() || !whole.error().message.empty());
  const std::string message = error_message_of(input);
  CHECK(std::none_of(message.begin(), message.end(), [](char c) { return static_cast<unsigned char>(c) < ' '; }));
  return 0;
}
