// perigee replay: runs a recorded request again and compares every bit.
#include <bit>

#include "apps/commands.h"
#include "apps/numbers.h"
#include "apps/options.h"
#include "base/file.h"
#include "engine/replay.h"

namespace perigee::apps {
namespace {

constexpr int kDifferent = 1;

struct ReplayFlags {
  ModelFlags model;
  std::string file;
  bool device_given = false;
  bool force = false;
};

// What the record says stands where no flag says otherwise.
void fill_from_record(const engine::ModelIdentity& recorded, ReplayFlags& f) {
  if (f.model.model.empty()) f.model.model = recorded.model;
  if (!f.device_given) f.model.device = recorded.device;
  // f64 has no word: it is what auto means on the reference device.
  if (f.model.kv_cache_dtype == "auto" && recorded.latent_format != "f64") f.model.kv_cache_dtype = recorded.latent_format;
  if (f.model.index_key_dtype == "auto" && recorded.key_format != "f64") f.model.index_key_dtype = recorded.key_format;
}

std::string id_text(const std::optional<int32_t>& id) { return id ? fmt::format("{}", *id) : "none"; }

std::string value_text(double value) { return fmt::format("{} ({:016x})", value, std::bit_cast<uint64_t>(value)); }

void print_part(const char* name, const engine::ReplayPart& part, int64_t tokens) {
  if (!part.skipped.empty()) {
    fmt::print("{}: skipped, {}\n", name, part.skipped);
  } else if (!part.difference) {
    fmt::print("{}: {} tokens, all bits equal\n", name, tokens);
  } else {
    const engine::ReplayDifference& d = *part.difference;
    fmt::print("{}: first difference at position {}: recorded id {} with log-probability {}, now id {} with {}\n", name,
               d.position, id_text(d.recorded_id), value_text(d.recorded_logprob), id_text(d.id), value_text(d.logprob));
  }
}

std::string part_json(const engine::ReplayPart& part) {
  if (!part.skipped.empty()) return fmt::format("{{\"skipped\":\"{}\"}}", part.skipped);
  if (!part.difference) return "{\"equal\":true}";
  const engine::ReplayDifference& d = *part.difference;
  const auto token = [](const std::optional<int32_t>& id, double logprob) {
    return id ? fmt::format("{{\"id\":{},\"logprob\":{},\"bits\":\"{:016x}\"}}", *id, number(logprob, false),
                            std::bit_cast<uint64_t>(logprob))
              : std::string("null");
  };
  return fmt::format("{{\"equal\":false,\"position\":{},\"recorded\":{},\"now\":{}}}", d.position,
                     token(d.recorded_id, d.recorded_logprob), token(d.id, d.logprob));
}

int run_replay(ReplayFlags f) {
  const Result<std::string> text = read_file(f.file);
  if (!text.ok()) return report(text.error());
  const Result<engine::RequestRecord> record = engine::from_json(*text, f.file);
  if (!record.ok()) return report(record.error());
  fill_from_record(record->identity, f);
  const Result<std::unique_ptr<engine::Engine>> engine = open_engine(f.model);
  if (!engine.ok()) return report(engine.error());
  const Result<engine::ModelIdentity> now = engine::identify(**engine);
  if (!now.ok()) return report(now.error());
  if (!f.force) {
    const Status same = engine::check_same(record->identity, *now, f.file);
    if (!same.ok()) return report(same.error());
  }
  const Result<engine::ReplayReport> done = engine::replay(**engine, *record);
  if (!done.ok()) return report(done.error());
  if (f.model.json) {
    fmt::print("{{\"tokens\":{},\"equal\":{},\"generation\":{},\"scoring\":{}}}\n", done->tokens, done->equal(),
               part_json(done->generation), part_json(done->scoring));
  } else {
    print_part("generation", done->generation, done->tokens);
    print_part("scoring", done->scoring, done->tokens);
  }
  const Status stats = write_stats(f.model.stats, **engine);
  if (!stats.ok()) return report(stats.error());
  return done->equal() ? 0 : kDifferent;
}

}  // namespace

void add_replay(CLI::App& program, int& status) {
  CLI::App* app = program.add_subcommand("replay", "Runs a recorded request again and compares every bit; status 1: they differ");
  auto flags = std::make_shared<ReplayFlags>();
  app->add_option("FILE", flags->file, "record that serve --record left")->required();
  app->add_option("--model", flags->model.model, "checkpoint folder; default: the recorded one");
  app->add_flag("--force", flags->force, "go on with other weights, numerics, formats or device than recorded");
  add_run_flags(*app, flags->model);
  app->callback([app, flags, &status] {
    flags->device_given = app->get_option("--device")->count() > 0;
    status = run_replay(*flags);
  });
}

}  // namespace perigee::apps
