#include "serve/session.h"

#include <algorithm>
#include <utility>

#include "base/rng.h"

namespace perigee::serve {

using engine::RequestEnd;

uint64_t ApiCore::next_seed() {
  if (options.seed.has_value()) return *options.seed;
  return random_bits(start_seed, seeds.fetch_add(1, std::memory_order_relaxed));
}

Session::Session(ApiCore& core, std::shared_ptr<Reply> reply, Format format)
    : core_(&core), reply_(std::move(reply)), format_(std::move(format)), started_(Clock::now()) {}

Status Session::start(Job job) {
  const std::lock_guard lock(start_mutex_);
  const auto rules = std::make_shared<const AnswerRules>(std::move(job.rules));
  for (size_t prompt = 0; prompt < job.prompts.size(); ++prompt) {
    for (int64_t k = 0; k < job.common.n; ++k) {
      auto choice = std::make_unique<Choice>(*core_->tokenizer, rules);
      choice->index = choices_.size();
      choice->prompt = prompt;
      choice->prompt_tokens = static_cast<int64_t>(job.prompts[prompt].size());
      choices_.push_back(std::move(choice));
    }
  }
  left_ = choices_.size();
  record_.route = job.route;
  record_.request_id = job.common.request_id;
  record_.choices = static_cast<int64_t>(left_);
  record_.max_tokens = job.max_tokens;
  const Status submitted = submit_all(job);
  if (!submitted.ok()) {
    cancel_all();
    closed_ = true;
    return submitted;
  }
  format_.opened(*this);
  // Only now: before, there was nobody to tell.
  reply_->on_disconnect([session = weak_from_this()] {
    if (const std::shared_ptr<Session> alive = session.lock()) alive->drop();
  });
  return {};
}

Status Session::submit_all(Job& job) {
  for (size_t i = 0; i < choices_.size(); ++i) {
    engine::TokenRequest request = request_of(job, *choices_[i]);
    // The last choice of a prompt takes it over; the others copy.
    std::vector<int32_t>& prompt = job.prompts[choices_[i]->prompt];
    const bool is_last = static_cast<int64_t>(i + 1) % job.common.n == 0;
    request.prompt = is_last ? std::move(prompt) : prompt;
    // The last choice of all takes the constraint over: copies must be made before the engine's thread moves it.
    if (job.constraint != nullptr) {
      const bool is_very_last = i + 1 == choices_.size();
      request.constraint = is_very_last ? std::move(job.constraint) : std::shared_ptr(job.constraint->clone());
    }
    Result<engine::RequestKey> key =
        core_->backend->submit(std::move(request), [self = shared_from_this(), i](engine::TokenUpdate&& update) {
          self->core_->delivery.post(self, i, std::move(update));
        });
    if (!key.ok()) return key.error();
    const std::lock_guard lock(keys_mutex_);
    keys_.push_back(*key);
  }
  return {};
}

engine::TokenRequest Session::request_of(const Job& job, const Choice& choice) const {
  const CommonFields& common = job.common;
  engine::TokenRequest request;
  request.sampling = common.sampling;
  request.sampling.choice = static_cast<int64_t>(choice.index) % common.n;
  const int64_t room = core_->backend->info().max_model_len - choice.prompt_tokens;
  request.max_tokens = job.max_tokens == 0 ? room : std::min(job.max_tokens, room);
  request.sampling.min_tokens = std::min(request.sampling.min_tokens, request.max_tokens);
  request.stop_ids = common.stop_ids;
  const std::vector<int32_t>& ends = core_->options.end_ids;
  if (!common.ignore_end) request.stop_ids.insert(request.stop_ids.end(), ends.begin(), ends.end());
  request.top_logprobs = std::max<int64_t>(common.logprobs, 0);
  request.prompt_logprobs = common.prompt_logprobs;
  request.priority = common.priority;
  request.session = common.session;
  request.cache_salt = common.cache_salt;
  request.label = common.request_id;
  return request;
}

void Session::cancel_all() {
  const std::lock_guard lock(keys_mutex_);
  for (const engine::RequestKey key : keys_) core_->backend->cancel(key);
}

void Session::drop() {
  if (gone_.exchange(true)) return;
  cancel_all();
}

void Session::deliver(size_t index, engine::TokenUpdate&& update) {
  const std::lock_guard lock(start_mutex_);
  Choice& choice = *choices_[index];
  if (closed_ || choice.answer.over()) return;
  if (gone_) return close("abort");
  if (update.finish == RequestEnd::kError) {
    ApiError error;
    error.status = 500;
    error.message = update.error.empty() ? "the engine failed at this request" : update.error;
    cancel_all();
    format_.failed(*this, error);
    return close("error");
  }
  read(choice, update);
  measure(choice, update);
  format_.pieces(*this, choice, update.tokens, pieces_);
  pieces_.clear();
  if (!choice.answer.over()) return;
  if (!update.finish.has_value()) core_->backend->complete(keys_[index], choice.answer.tokens());
  if (--left_ > 0) return;
  format_.complete(*this);
  close(text::finish_reason_name(choices_.front()->answer.reason()));
}

void Session::read(Choice& choice, engine::TokenUpdate& update) {
  choice.cached_tokens = std::max(choice.cached_tokens, update.cached_tokens);
  if (!update.prompt.empty()) choice.prompt_logprobs = std::move(update.prompt);
  size_t used = 0;
  while (used < update.tokens.size() && !choice.answer.over()) {
    const Status pushed = choice.answer.push(update.tokens[used].id, pieces_);
    CHECK(pushed.ok());  // the engine samples from the vocabulary only
    ++used;
  }
  update.tokens.resize(used);
  if (!update.finish.has_value() || choice.answer.over()) return;
  const text::StopCause cause = *update.finish == RequestEnd::kStop     ? text::StopCause::kNatural
                                : *update.finish == RequestEnd::kLength ? text::StopCause::kLength
                                                                        : text::StopCause::kAbort;
  choice.answer.finish(cause, pieces_);
}

void Session::measure(Choice& choice, const engine::TokenUpdate& update) {
  if (update.tokens.empty()) return;
  if (record_.first_token_s < 0) {
    record_.first_token_s = std::chrono::duration<double>(Clock::now() - started_).count();
  }
  const double before = choice.times.last_token;
  choice.times = update.times;
  if (before >= 0 && core_->options.on_token_gap) {
    core_->options.on_token_gap(choice.times.last_token - before, static_cast<int64_t>(update.tokens.size()));
  }
}

// Of the choices that got a token.
void Session::add_times() {
  double first_step = -1, first_token = -1, last_token = -1;
  for (const auto& choice : choices_) {
    const engine::RequestTimes& t = choice->times;
    if (t.first_token < 0) continue;
    first_step = first_step < 0 ? t.first_step : std::min(first_step, t.first_step);
    first_token = first_token < 0 ? t.first_token : std::min(first_token, t.first_token);
    last_token = std::max(last_token, t.last_token);
  }
  if (first_token < 0) return;
  record_.queue_s = first_step;
  record_.prefill_s = first_token - first_step;
  record_.decode_s = last_token - first_token;
}

// The end of the session, told once.
void Session::close(const std::string& reason) {
  closed_ = true;
  if (!core_->options.on_finished) return;
  record_.reason = reason;
  size_t prompt = choices_.size();
  for (const auto& choice : choices_) {
    record_.generated_tokens += choice->answer.tokens();
    if (choice->prompt == prompt) continue;
    prompt = choice->prompt;
    record_.prompt_tokens += choice->prompt_tokens;
    record_.cached_tokens += choice->cached_tokens;
  }
  add_times();
  record_.total_s = std::chrono::duration<double>(Clock::now() - started_).count();
  core_->options.on_finished(record_);
}

}  // namespace perigee::serve
