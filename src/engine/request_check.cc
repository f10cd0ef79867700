#include "engine/request_check.h"

#include <algorithm>

namespace perigee::engine {

Status check_request(const Engine& engine, const BackendInfo& info, const TokenRequest& r) {
  const Status ids = engine.check_ids(r.prompt, 0, "the prompt");
  if (!ids.ok()) return ids;
  if (r.max_tokens < 1) return invalid_argument("max_tokens is {}, at least one token is needed", r.max_tokens);
  const int64_t room = info.max_model_len - static_cast<int64_t>(r.prompt.size());
  if (r.max_tokens > room) {
    return out_of_range("This model's maximum context length is {} tokens; the prompt has {} and max_tokens asks for {}",
                        info.max_model_len, r.prompt.size(), r.max_tokens);
  }
  const auto inside = [&](int32_t id) { return id >= 0 && id < info.vocab; };
  for (const auto& [id, bias] : r.sampling.logit_bias) {
    if (!inside(id)) return out_of_range("logit_bias: id {} is outside the vocabulary of {}", id, info.vocab);
  }
  for (const int32_t id : r.sampling.allowed_ids) {
    if (!inside(id)) return out_of_range("allowed_token_ids: id {} is outside the vocabulary of {}", id, info.vocab);
  }
  for (const int32_t id : r.stop_ids) {
    if (!inside(id)) return out_of_range("stop_token_ids: id {} is outside the vocabulary of {}", id, info.vocab);
  }
  for (const std::vector<int32_t>& word : r.sampling.bad_words) {
    if (word.empty() || !std::all_of(word.begin(), word.end(), inside)) {
      return out_of_range("bad_words: a sequence is empty or has an id outside the vocabulary of {}", info.vocab);
    }
  }
  return {};
}

// Waits for something to do; false when the service ends.

}  // namespace perigee::engine
