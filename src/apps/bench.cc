// perigee bench: the speed of a model or of single operations on this machine, beside what its memory and matrix units allow.
#include "apps/commands.h"

namespace perigee::apps {

void add_bench(CLI::App& program, int& status) {
  CLI::App* bench = program.add_subcommand("bench", "Speed on this machine, beside its floor");
  bench->require_subcommand(1);
  add_bench_engine(*bench, status);
  add_bench_ops(*bench, status);
  add_bench_load(*bench, status);
}

}  // namespace perigee::apps
