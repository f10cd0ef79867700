#include "apps/converse.h"

#include <unistd.h>

#include <cstdio>
#include <iostream>

#include "apps/options.h"

namespace perigee::apps {

int converse(const Talk& talk) {
  const bool terminal = ::isatty(0) == 1 && ::isatty(1) == 1 && ::isatty(2) == 1;
  AnswerPrinter printer(terminal);
  if (terminal) fmt::print(stderr, "Say something. Ctrl-C breaks an answer off, /new starts again, /quit ends.\n");
  std::string line;
  while (true) {
    if (terminal) {
      fmt::print(stderr, "\n> ");
      std::fflush(stderr);
    }
    if (!std::getline(std::cin, line) || line == "/quit") break;
    if (line.empty()) continue;
    if (line == "/new") {
      talk.start_anew();
      continue;
    }
    const Interrupt interrupt(terminal);
    const Status said = talk.say(line, printer, interrupt);
    printer.end();
    if (std::ferror(stdout) != 0) return report(io_error("the answer cannot be written to standard output"));
    if (said.ok()) continue;
    if (interrupt.requested()) {
      fmt::print(stderr, "perigee: the answer was broken off and is not kept\n");
      continue;
    }
    const int status = report(said.error());
    if (!terminal) return status;
  }
  if (terminal) fmt::print(stderr, "\n");
  return 0;
}

void print_usage(const serve::AnswerUsage& usage, const std::string& finish_reason, AnswerPrinter& printer) {
  printer.note(fmt::format("{} tokens in, {} out, {} of these for thinking; ended by {}", usage.prompt, usage.completion,
                           usage.reasoning, finish_reason.empty() ? "no reason given" : finish_reason));
}

}  // namespace perigee::apps
