// Any bytes as text, as a merge table and as a tokenizer config: no crash; text comes back; user text has no control ids.
#include <string_view>

#include "text/testing.h"
#include "text/utf8.h"

using namespace perigee;
using namespace perigee::text;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const Tokenizer& tokenizer = testing::tiny_tokenizer();
  const std::vector<int32_t> ids = tokenizer.encode_text(input);
  for (const int32_t id : ids) CHECK_LT(id, tokenizer.base_size());
  const std::string text = replace_invalid_utf8(input);
  CHECK(*tokenizer.decode(ids) == text);
  CHECK(*tokenizer.decode(tokenizer.encode_control(input)) == text);

  static const std::string model = testing::model_file(testing::byte_tokens());
  static const std::string config = testing::config_file(256);
  for (const Result<Tokenizer>& made :
       {Tokenizer::parse(input, "model", config, "config"),
        Tokenizer::parse(model, "model", input, "config"),
        Tokenizer::parse(model + std::string(input), "model", R"({"added_tokens_decoder": {}})",
                         "config")}) {
    if (made.ok()) {
      CHECK(*made->decode(made->encode_control(input)) == text);
    } else {
      CHECK(!made.error().message.empty());
    }
  }
  return 0;
}
