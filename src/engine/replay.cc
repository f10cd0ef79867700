#include "engine/replay.h"

#include <algorithm>
#include <bit>
#include <future>

#include "engine/service.h"

namespace perigee::engine {
namespace {

std::optional<ReplayDifference> compare(const RequestRecord& r, const std::vector<TokenLogprob>& now) {
  for (size_t i = 0; i < std::max(r.ids.size(), now.size()); ++i) {
    ReplayDifference d;
    d.position = static_cast<int64_t>(r.prompt.size() + i);
    if (i < r.ids.size()) {
      d.recorded_id = r.ids[i];
      d.recorded_logprob = r.logprobs[i];
    }
    if (i < now.size()) {
      d.id = now[i].id;
      d.logprob = now[i].model_logprob;
    }
    const bool same_bits = std::bit_cast<uint64_t>(d.recorded_logprob) == std::bit_cast<uint64_t>(d.logprob);
    if (d.recorded_id != d.id || !same_bits) return d;
  }
  return std::nullopt;
}

// What the request gives when it runs alone. As many tokens as were recorded are enough: an end by length is one there.
Result<std::vector<TokenLogprob>> generate_again(const Engine& engine, const RequestRecord& r) {
  ServiceOptions o;
  o.max_num_seqs = 1;
  o.max_model_len = static_cast<int64_t>(r.prompt.size() + r.ids.size());
  const Result<std::unique_ptr<Service>> service = Service::create(engine, o);
  if (!service.ok()) return service.error();
  TokenRequest request;
  request.prompt = r.prompt;
  request.sampling = r.sampling;
  request.stop_ids = r.stop_ids;
  request.max_tokens = static_cast<int64_t>(r.ids.size());
  std::vector<TokenLogprob> tokens;
  std::promise<TokenUpdate> last;
  const Result<RequestKey> submitted = (*service)->submit(std::move(request), [&](TokenUpdate&& u) {
    for (TokenLogprob& t : u.tokens) tokens.push_back(std::move(t));
    if (u.finish) last.set_value(std::move(u));
  });
  if (!submitted.ok()) return submitted.error();
  const TokenUpdate end = last.get_future().get();
  if (end.finish == RequestEnd::kError) return Error{ErrorCode::kInternal, end.error};
  return tokens;
}

Result<std::vector<TokenLogprob>> score_again(Engine& engine, const RequestRecord& r) {
  std::vector<int32_t> ids = r.prompt;
  ids.insert(ids.end(), r.ids.begin(), r.ids.end());
  const Result<std::vector<ScoredSequence>> scored = engine.score({ids}, 0);
  if (!scored.ok()) return scored.error();
  std::vector<TokenLogprob> tokens(r.ids.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i].id = r.ids[i];
    tokens[i].model_logprob = *(*scored)[0][r.prompt.size() + i - 1].target_logprob;
  }
  return tokens;
}

}  // namespace

Result<ReplayReport> replay(Engine& engine, const RequestRecord& record) {
  const Status prompt = engine.check_ids(record.prompt, static_cast<int64_t>(record.ids.size()), "prompt_ids with ids");
  if (!prompt.ok()) return prompt.error();
  const Status made = engine.check_ids(record.ids, 0, "ids");
  if (!made.ok()) return made.error();
  ReplayReport report;
  report.tokens = static_cast<int64_t>(record.ids.size());
  if (record.constrained) {
    report.generation.skipped = "a grammar chose among the tokens, and records do not hold grammars";
  } else {
    const Result<std::vector<TokenLogprob>> again = generate_again(engine, record);
    if (!again.ok()) return again.error();
    report.generation.difference = compare(record, *again);
  }
  const Result<std::vector<TokenLogprob>> scored = score_again(engine, record);
  if (!scored.ok()) return scored.error();
  report.scoring.difference = compare(record, *scored);
  return report;
}

}  // namespace perigee::engine
