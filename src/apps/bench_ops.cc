// perigee bench ops: every operation at the shapes of a model, beside what the device's memory and matrix units allow.
#include "apps/commands.h"
#include "apps/options.h"
#include "base/cpu.h"
#include "bench/ops/table.h"
#include "tensor/gpu.h"

namespace perigee::apps {
namespace {

struct Flags {
  std::string device = "cpu";
  std::string isa = "auto";
  int threads = cpu_threads();
  bench::TableOptions table;
};

Status run(const Flags& flags) {
  const Result<tensor::Device> device = device_of(flags.device);
  if (!device.ok()) return device.error();
  if (*device == tensor::Device::kReference) return invalid_argument("--device is 'reference'; bench ops has cpu and cuda");
  ThreadPool pool(flags.threads);
  ops::Context context = ops::limit_isa(ops::make_context(*device, &pool), flags.isa);
  tensor::GpuStream stream;
  if (*device == tensor::Device::kCuda) {
    Result<tensor::GpuStream> made = tensor::GpuStream::create();
    if (!made.ok()) return made.error();
    stream = std::move(*made);
    context.stream = stream.handle();
  }
  return bench::run_table(context, flags.table);
}

}  // namespace

void add_bench_ops(CLI::App& bench, int& status) {
  CLI::App* app = bench.add_subcommand("ops", "Every operation at the shapes of a model");
  auto flags = std::make_shared<Flags>();
  app->add_option("--device", flags->device, "cpu or cuda");
  app->add_option("--only", flags->table.only, "run the cases whose operation and name, as printed, contain this text");
  app->add_option("--seconds", flags->table.seconds, "least time of a case")->check(CLI::Range(0.0, 600.0));
  app->add_option("--threads", flags->threads, "threads; default: all that the process may use")->check(CLI::Range(1, 1024));
  app->add_option("--isa", flags->isa, "at most these CPU instructions: auto, generic, avx2, avx512 or amx")
      ->check(CLI::IsMember({"auto", "generic", "avx2", "avx512", "amx"}));
  app->add_option("--json", flags->table.json, "also write the numbers to this file");
  app->callback([flags, &status] {
    const Status done = run(*flags);
    if (!done.ok()) status = report(done.error());
  });
}

}  // namespace perigee::apps
