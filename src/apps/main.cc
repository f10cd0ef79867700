// perigee: one binary, one sub-command per task (docs/map.md).
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "apps/commands.h"

int main(int argc, char** argv) {
  CLI::App program("perigee: serves, scores and trains hybrid sparse-attention mixture-of-experts models");
  program.require_subcommand(1);
  program.set_version_flag("--version", "perigee " PERIGEE_VERSION);
  int status = 0;
  perigee::apps::add_generate(program, status);
  perigee::apps::add_score(program, status);
  perigee::apps::add_chat(program, status);
  perigee::apps::add_inspect(program, status);
  perigee::apps::add_plan(program, status);
  perigee::apps::add_serve(program, status);
  perigee::apps::add_replay(program, status);
  perigee::apps::add_bench(program, status);
  try {
    program.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help, --version
    return program.exit(success);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "perigee: %s; see perigee --help\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "perigee: internal failure: %s\n", error.what());
    return 1;
  }
  return status;
}
