// perigee bench load: how long a checkpoint takes from its files to where it runs, beside the rate of the disk.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "apps/commands.h"
#include "apps/options.h"
#include "load/index.h"
#include "load/reader.h"
#include "ops/dynamic_items.h"

namespace perigee::apps {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kDiskBlock = size_t{4} << 20;

struct Flags {
  ModelFlags model;
  int repeat = 3;
  bool cold = false;
};

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Lets the system forget what it holds of the files.
void forget(const std::vector<load::SafetensorsFile>& files) {
  for (const load::SafetensorsFile& f : files) {
    f.drop(0, f.size());
    const int fd = ::open(f.path().c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) continue;
    ::fsync(fd);
    ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    ::close(fd);
  }
}

// Reads all files and does nothing with them.
Result<double> read_all(const std::vector<load::SafetensorsFile>& files, ThreadPool& pool) {
  std::vector<load::FileReader> readers;
  std::vector<std::pair<size_t, size_t>> blocks;
  for (const load::SafetensorsFile& f : files) {
    Result<load::FileReader> reader = load::FileReader::open(f.path());
    if (!reader.ok()) return reader.error();
    for (size_t at = 0; at < f.size(); at += kDiskBlock) blocks.emplace_back(readers.size(), at);
    readers.push_back(std::move(*reader));
  }
  std::atomic<bool> whole = true;
  const Clock::time_point start = Clock::now();
  ops::for_each_item(&pool, static_cast<int64_t>(blocks.size()), [&](int64_t i) {
    thread_local load::ReadBuffer buffer;
    const auto [file, at] = blocks[static_cast<size_t>(i)];
    if (!readers[file].read(at, std::min(kDiskBlock, files[file].size() - at), buffer).ok()) whole = false;
  });
  const double seconds = seconds_since(start);
  if (!whole) return io_error("reading the files failed");
  return seconds;
}

Status run(const Flags& flags) {
  const Result<engine::EngineOptions> options = engine_options(flags.model);
  if (!options.ok()) return options.error();
  Result<std::vector<load::SafetensorsFile>> files = load::open_checkpoint(flags.model.model);
  if (!files.ok()) return files.error();
  size_t bytes = 0;
  for (const load::SafetensorsFile& f : *files) bytes += f.size();
  const auto line = [&](const char* what, double s) {
    fmt::print("{},{:.3f} s,{:.2f} GB,{:.2f} GB/s\n", what, s, static_cast<double>(bytes) * 1e-9,
               static_cast<double>(bytes) * 1e-9 / s);
    std::fflush(stdout);
  };
  ThreadPool pool(options->threads > 0 ? options->threads : cpu_threads());
  for (int i = 0; i < flags.repeat; ++i) {
    if (flags.cold) {
      forget(*files);
      const Result<double> read = read_all(*files, pool);
      if (!read.ok()) return read.error();
      line("disk alone", *read);
      forget(*files);
    }
    const Clock::time_point start = Clock::now();
    const Result<std::unique_ptr<engine::Engine>> engine = engine::Engine::open(*options);
    if (!engine.ok()) return engine.error();
    line(flags.cold ? "cold load" : i == 0 ? "first load (opens the device)" : "warm load", seconds_since(start));
  }
  return {};
}

}  // namespace

void add_bench_load(CLI::App& bench, int& status) {
  CLI::App* app = bench.add_subcommand("load", "Loading a checkpoint, from memory or from the disk");
  auto flags = std::make_shared<Flags>();
  add_model_flags(*app, flags->model);
  app->add_option("--repeat", flags->repeat, "loads to time, one after the other")->check(CLI::Range(1, 100));
  app->add_flag("--cold", flags->cold, "before each load let the system forget the files, and time the disk alone too");
  app->callback([flags, &status] {
    const Status done = run(*flags);
    if (!done.ok()) status = report(done.error());
  });
}

}  // namespace perigee::apps
