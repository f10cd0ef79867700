// What    One function per sub-command: declares its flags and stores the exit status when it runs.
// Owner   apps.
// Threads Main thread.
// Errors  Exit status 0 done, 2 bad arguments or input, 1 internal failure.
#pragma once

#include <CLI/CLI.hpp>

namespace perigee::apps {

void add_generate(CLI::App& program, int& status);
void add_score(CLI::App& program, int& status);
void add_chat(CLI::App& program, int& status);
void add_inspect(CLI::App& program, int& status);
void add_plan(CLI::App& program, int& status);
void add_serve(CLI::App& program, int& status);
void add_replay(CLI::App& program, int& status);
void add_bench(CLI::App& program, int& status);

// Under `bench`.
void add_bench_engine(CLI::App& bench, int& status);
void add_bench_ops(CLI::App& bench, int& status);
void add_bench_load(CLI::App& bench, int& status);

}  // namespace perigee::apps
