#include "engine/verifier.h"

#include <utility>

namespace perigee::engine {

void Verifier::offer(const std::vector<int32_t>& prompt, const std::vector<int32_t>& made, std::vector<double> logprobs) {
  due_ += fraction_;
  if (due_ < 1) return;
  due_ -= 1;
  Finished f = {prompt, prompt.size(), std::move(logprobs)};
  f.ids.insert(f.ids.end(), made.begin(), made.end());
  waiting_.push_back(std::move(f));
}

std::optional<TokenRequest> Verifier::next() {
  now_ = std::move(waiting_.front());
  waiting_.pop_front();
  if (static_cast<int64_t>(now_.ids.size()) + 1 > max_model_len_) return std::nullopt;
  TokenRequest request;
  request.prompt = now_.ids;
  request.max_tokens = 1;
  request.prompt_logprobs = 0;
  return request;
}

void Verifier::check(const std::vector<std::optional<TokenLogprob>>& prompt) {
  bool same = true;
  for (size_t i = 0; i < now_.logprobs.size(); ++i) {
    const std::optional<TokenLogprob>& t = prompt[now_.prompt + i];
    same = same && t.has_value() && t->logprob == now_.logprobs[i];
  }
  ++verified_;
  mismatches_ += same ? 0 : 1;
}

}  // namespace perigee::engine
