// perigee score: one forward pass over given ids, log-probabilities out.
#include <cmath>
#include <cstdio>

#include "apps/commands.h"
#include "apps/ids.h"
#include "apps/numbers.h"
#include "apps/options.h"

namespace perigee::apps {
namespace {

struct ScoreFlags {
  ModelFlags model;
  std::string ids;
  int64_t top = 20;
};

std::string positions_json(const engine::ScoredSequence& sequence, bool single) {
  std::string out = "{\"positions\":[";
  for (size_t i = 0; i < sequence.size(); ++i) {
    const engine::ScoredPosition& p = sequence[i];
    if (i > 0) out += ",";
    out += fmt::format("{{\"id\":{},\"logsumexp\":{},\"target_logprob\":{},\"top\":[", p.id,
                       number(p.logsumexp, single),
                       p.target_logprob ? number(*p.target_logprob, single) : "null");
    for (size_t k = 0; k < p.top.size(); ++k) {
      out += fmt::format("{}[{},{}]", k > 0 ? "," : "", p.top[k].first, number(p.top[k].second, single));
    }
    out += "]}";
  }
  return out + "]}";
}

void print_table(const engine::ScoredSequence& sequence) {
  fmt::print("{:>8} {:>8} {:>14} {:>14}  best\n", "position", "id", "logsumexp", "next logprob");
  double sum = 0;
  int64_t counted = 0;
  for (size_t i = 0; i < sequence.size(); ++i) {
    const engine::ScoredPosition& p = sequence[i];
    const std::string target = p.target_logprob ? fmt::format("{:.6f}", *p.target_logprob) : "-";
    fmt::print("{:>8} {:>8} {:>14.6f} {:>14} ", i, p.id, p.logsumexp, target);
    for (size_t k = 0; k < p.top.size() && k < 3; ++k) fmt::print(" {}:{:.3f}", p.top[k].first, p.top[k].second);
    fmt::print("\n");
    if (p.target_logprob) {
      sum += *p.target_logprob;
      ++counted;
    }
  }
  if (counted > 0) {
    fmt::print("{} targets, mean logprob {:.6f}\n", counted, sum / static_cast<double>(counted));
  }
}

int run_score(const ScoreFlags& flags) {
  const Result<IdLists> lists = read_id_lists(flags.ids);
  if (!lists.ok()) return report(lists.error());
  if (flags.top < 0) return report(invalid_argument("--top is {}; it must be at least 0", flags.top));
  const Result<std::unique_ptr<engine::Engine>> engine = open_engine(flags.model);
  if (!engine.ok()) return report(engine.error());
  for (size_t i = 0; i < lists->sequences.size(); ++i) {
    const std::string what = lists->nested ? fmt::format("{}, sequence {}", flags.ids, i) : flags.ids;
    const Status good = (*engine)->check_ids(lists->sequences[i], 0, what);
    if (!good.ok()) return report(good.error());
  }
  const Result<std::vector<engine::ScoredSequence>> scored = (*engine)->score(lists->sequences, flags.top);
  if (!scored.ok()) return report(scored.error());
  const bool single = (*engine)->device() != tensor::Device::kReference;
  if (!flags.model.json) {
    for (const engine::ScoredSequence& s : *scored) print_table(s);
  } else if (!lists->nested) {
    fmt::print("{}\n", positions_json((*scored)[0], single));
  } else {
    std::string out = "{\"sequences\":[";
    for (size_t i = 0; i < scored->size(); ++i) {
      out += (i > 0 ? "," : "") + positions_json((*scored)[i], single);
    }
    fmt::print("{}]}}\n", out);
  }
  const Status stats = write_stats(flags.model.stats, **engine);
  return stats.ok() ? 0 : report(stats.error());
}

}  // namespace

void add_score(CLI::App& program, int& status) {
  CLI::App* app = program.add_subcommand("score", "Scores given token ids in one forward pass");
  auto flags = std::make_shared<ScoreFlags>();
  add_model_flags(*app, flags->model);
  app->add_option("--ids", flags->ids, "JSON file: an array of ids, or an array of such arrays")->required();
  app->add_option("--top", flags->top, "most likely tokens to report per position");
  app->callback([flags, &status] { status = run_score(*flags); });
}

}  // namespace perigee::apps
