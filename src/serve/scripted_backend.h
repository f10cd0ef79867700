// What    An engine for tests of a server: it plays token scripts in any grouping, at once or when told, and keeps
//         what it was asked.
// Owner   serve; tests only.
// Threads submit() and cancel() from any thread; play(), finish() and fail() from the test's.
// Errors  refuse() makes later submits fail.
#pragma once

#include <algorithm>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/backend.h"

namespace perigee::serve::testing {

struct Script {
  std::vector<int32_t> ids;
  std::vector<size_t> groups = {};  // tokens per update; the last one repeats; empty: one each
  engine::RequestEnd end = engine::RequestEnd::kStop;
  int64_t cached_tokens = 0;
  bool by_hand = false;  // nothing happens until the test says so
};

class ScriptedBackend : public engine::Backend {
  template <class Read>
  auto locked(Read read) const {
    const std::lock_guard lock(mutex_);
    return read();
  }

 public:
  explicit ScriptedBackend(int64_t vocab) {
    info_.model = "scripted";
    info_.max_model_len = 4096;
    info_.vocab = vocab;
  }

  engine::BackendInfo& mutable_info() { return info_; }
  const engine::BackendInfo& info() const override { return info_; }
  engine::BackendState state() const override {
    engine::BackendState out;
    out.draining = locked([&] { return draining_; });
    return out;
  }
  void drain() override {
    const std::lock_guard lock(mutex_);
    draining_ = true;
  }
  void pause(bool) override {}
  void reset_prefix_cache() override {}

  // The script of each request, by its number.
  std::function<Script(const engine::TokenRequest&, size_t)> script = [](const auto&, size_t) { return Script{}; };
  void refuse(size_t from, Error error) {
    refuse_from_ = from;
    refusal_ = std::move(error);
  }

  Result<engine::RequestKey> submit(engine::TokenRequest request, engine::OnUpdate on_update) override {
    size_t number = 0;
    Script plan;
    {
      const std::lock_guard lock(mutex_);
      if (requests_.size() >= refuse_from_) return refusal_;
      number = requests_.size();
      plan = script(request, number);
      requests_.push_back(std::move(request));
      running_.push_back({std::move(on_update), plan, 0, false, {}});
    }
    if (!plan.by_hand) play_all(number);
    return number + 1;
  }

  void complete(engine::RequestKey key, int64_t) override { cancel(key); }
  void cancel(engine::RequestKey key) override {
    {
      const std::lock_guard lock(mutex_);
      cancelled_.push_back(key - 1);
    }
    finish(key - 1, engine::RequestEnd::kAbort);
  }

  // The next `count` tokens of a script in one update.
  void play(size_t number, size_t count, std::optional<engine::RequestEnd> end = {}) {
    engine::TokenUpdate update;
    engine::OnUpdate call;
    {
      const std::lock_guard lock(mutex_);
      Running& running = running_[number];
      if (running.ended) return;
      const engine::TokenRequest& request = requests_[number];
      update.cached_tokens = running.script.cached_tokens;
      if (running.at == 0 && request.prompt_logprobs >= 0) update.prompt = prompt_logprobs(request);
      for (size_t i = 0; i < count && running.at < running.script.ids.size(); ++i) {
        update.tokens.push_back(token(running.script.ids[running.at], running.at, request.top_logprobs));
        ++running.at;
      }
      update.finish = end;
      // A made-up clock: half a second of waiting, one and a half to the first token, a quarter for each later update.
      running.times.first_step = 0.5;
      running.times.last_token = running.times.first_token < 0 ? 2.0 : running.times.last_token + 0.25;
      if (running.times.first_token < 0) running.times.first_token = 2.0;
      update.times = running.times;
      running.ended = end.has_value();
      call = running.on_update;
      if (running.ended) running.on_update = nullptr;
    }
    call(std::move(update));
  }
  void finish(size_t number, engine::RequestEnd end) { play(number, 0, end); }
  void fail(size_t number, std::string error) {
    engine::TokenUpdate update;
    update.finish = engine::RequestEnd::kError;
    update.error = std::move(error);
    const std::lock_guard lock(mutex_);
    running_[number].ended = true;
    std::exchange(running_[number].on_update, nullptr)(std::move(update));
  }

  size_t requests() const {
    return locked([&] { return requests_.size(); });
  }
  engine::TokenRequest request(size_t number) const {
    return locked([&] { return requests_.at(number); });
  }
  std::vector<size_t> cancelled() const {
    return locked([&] { return cancelled_; });
  }
  void forget() {
    const std::lock_guard lock(mutex_);
    requests_.clear();
    running_.clear();
    cancelled_.clear();
  }

  // The made-up log-probabilities.
  static engine::TokenLogprob token(int32_t id, size_t at, int64_t top) {
    engine::TokenLogprob out{id, -0.25 * static_cast<double>(at + 1), {}};
    for (int64_t k = 0; k < top; ++k) {
      out.top.emplace_back(k == 0 ? id : static_cast<int32_t>(k), out.logprob - static_cast<double>(k));
    }
    return out;
  }

 private:
  struct Running {
    engine::OnUpdate on_update;
    Script script;
    size_t at = 0;
    bool ended = false;
    engine::RequestTimes times = {};
  };

  static std::vector<std::optional<engine::TokenLogprob>> prompt_logprobs(const engine::TokenRequest& request) {
    std::vector<std::optional<engine::TokenLogprob>> out(request.prompt.size());
    for (size_t i = 1; i < out.size(); ++i) out[i] = token(request.prompt[i], i, request.prompt_logprobs);
    return out;
  }

  void play_all(size_t number) {
    const Script plan = locked([&] { return running_[number].script; });
    size_t at = 0;
    for (size_t group = 0; at < plan.ids.size(); ++group) {
      const size_t size = plan.groups.empty() ? 1 : plan.groups[std::min(group, plan.groups.size() - 1)];
      at += std::max<size_t>(size, 1);
      play(number, std::max<size_t>(size, 1), at >= plan.ids.size() ? std::optional(plan.end) : std::nullopt);
    }
    if (plan.ids.empty()) finish(number, plan.end);
  }

  engine::BackendInfo info_;
  mutable std::mutex mutex_;
  std::vector<engine::TokenRequest> requests_;
  std::vector<Running> running_;
  std::vector<size_t> cancelled_;
  bool draining_ = false;
  size_t refuse_from_ = SIZE_MAX;
  Error refusal_;
};

}  // namespace perigee::serve::testing
