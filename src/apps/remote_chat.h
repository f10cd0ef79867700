// What    The conversation of `perigee chat` with a server: its flags, and what is said and remembered.
// Owner   apps. serve/chat_client does the talking.
// Threads Main thread.
// Errors  Exit statuses as everywhere; a turn that failed is taken back.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "apps/options.h"

namespace perigee::apps {

struct RemoteFlags {
  std::string url;
  std::string api_key;
  std::string api_key_file;
  std::string ca_file;
  std::string model;  // empty: the server's first
  bool drop_thinking = false;
};

// Adds --url and what goes with it. Options that stand on the command so far are a server's business and refused with --url, all
// but --seed.
void add_remote_flags(CLI::App& app, RemoteFlags& flags);

// `app` says which of the shared flags were given: only those are sent.
int run_remote_chat(const CLI::App& app, const RemoteFlags& flags, const SamplingFlags& sampling, uint64_t seed,
                    const std::string& system, bool usage);

}  // namespace perigee::apps
