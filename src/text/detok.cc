#include "text/detok.h"

namespace perigee::text {

Result<std::string> Detokenizer::push(int32_t id) {
  const Result<std::string_view> bytes = tokenizer_->token_bytes(id);
  if (!bytes.ok()) return bytes.error();
  if (options_.skip_hidden && tokenizer_->is_hidden(id)) return std::string();
  return stream_.push(*bytes);
}

}  // namespace perigee::text
