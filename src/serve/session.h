// What    One API request under way: its choices on the engine, their answers, and the end of it all (done, stopped
//         by us, gone client, failed engine). What the client sees is the format's business.
// Owner   serve.
// Threads start() on a handler's thread; deliver() on the delivery thread; drop() on any. The format is called from
//         the delivery thread, and once (opened) from start().
// Errors  start() gives what the engine refuses; later failures go to the format.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "engine/backend.h"
#include "serve/answer.h"
#include "serve/api_types.h"
#include "serve/delivery.h"

namespace perigee::serve {

// What all handlers share.
struct ApiCore {
  ApiCore(ApiOptions api_options, engine::Backend& engine, const text::Tokenizer& words)
      : options(std::move(api_options)), backend(&engine), tokenizer(&words) {}

  uint64_t next_seed();

  ApiOptions options;
  engine::Backend* backend;
  const text::Tokenizer* tokenizer;
  uint64_t start_seed = std::random_device{}();
  std::atomic<uint64_t> seeds{0};
  Delivery delivery;  // last: stops first
};

struct Choice {
  Choice(const text::Tokenizer& tokenizer, std::shared_ptr<const AnswerRules> rules)
      : answer(tokenizer, std::move(rules)) {}

  Answer answer;
  size_t index = 0;   // in the reply
  size_t prompt = 0;  // which prompt
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  engine::RequestTimes times;
  std::vector<std::optional<engine::TokenLogprob>> prompt_logprobs;
};

class Session;

// How a reply is written. `pieces` and `tokens` are one update's, already cut at the end of the answer; the last call
// for a choice has choice.answer.over().
struct Format {
  std::function<void(Session&)> opened;  // all requests are taken; no piece came yet
  std::function<void(Session&, Choice&, std::vector<engine::TokenLogprob>&, std::vector<text::OutputEvent>&)> pieces;
  std::function<void(Session&)> complete;  // every choice is over
  std::function<void(Session&, const ApiError&)> failed;
};

// A writer's methods opened(), pieces() and complete() as a format, with `failed` left to the caller.
template <class Writer>
Format format_with(std::shared_ptr<Writer> writer) {
  Format format;
  format.opened = [writer](Session& session) { writer->opened(session); };
  format.pieces = [writer](Session& session, Choice& choice, std::vector<engine::TokenLogprob>& tokens,
                           std::vector<text::OutputEvent>& pieces) { writer->pieces(session, choice, tokens, pieces); };
  format.complete = [writer](Session& session) { writer->complete(session); };
  return format;
}

// What to run: `n` choices of each prompt.
struct Job {
  std::string route;
  std::string prompt_field;  // where the prompt stood, for errors
  std::string field_prefix;  // before the names of `common`'s fields
  CommonFields common;
  std::vector<std::vector<int32_t>> prompts;
  int64_t max_tokens = 0;  // of each choice; 0: up to the end of the context
  AnswerRules rules;
  std::shared_ptr<text::Constraint> constraint;
};

class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(ApiCore& core, std::shared_ptr<Reply> reply, Format format);

  // Submits all choices, or none. The reply is untouched when this fails.
  Status start(Job job);
  void deliver(size_t choice, engine::TokenUpdate&& update);
  // The client is gone: the engine should stop, and nothing more is written.
  void drop();

  Reply& reply() { return *reply_; }
  const std::vector<std::unique_ptr<Choice>>& choices() const { return choices_; }

 private:
  engine::TokenRequest request_of(const Job& job, const Choice& choice) const;
  Status submit_all(Job& job);
  void cancel_all();
  void read(Choice& choice, engine::TokenUpdate& update);
  void close(const std::string& reason);
  void measure(Choice& choice, const engine::TokenUpdate& update);
  void add_times();

  using Clock = std::chrono::steady_clock;
  ApiCore* core_;
  std::shared_ptr<Reply> reply_;
  Format format_;
  std::mutex start_mutex_;  // held by start() and each deliver(): nothing is delivered before all is submitted
  std::mutex keys_mutex_;
  std::vector<engine::RequestKey> keys_;
  std::vector<std::unique_ptr<Choice>> choices_;
  std::vector<text::OutputEvent> pieces_;
  RequestRecord record_;
  Clock::time_point started_;
  size_t left_ = 0;  // choices that are not over
  bool closed_ = false;
  std::atomic<bool> gone_{false};
};

}  // namespace perigee::serve
