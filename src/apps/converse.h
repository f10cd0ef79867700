// What    The terminal's side of a conversation, whoever answers: reads lines, obeys /new and /quit, prints answers.
// Owner   apps.
// Threads Main thread.
// Errors  A turn that failed is reported and forgotten. On a terminal the conversation goes on; otherwise it ends with the
//         error's exit status, because the lines that follow build on the answer.
#pragma once

#include <functional>
#include <string>

#include "apps/answer.h"
#include "apps/interrupt.h"
#include "base/result.h"
#include "serve/chat_reader.h"

namespace perigee::apps {

struct Talk {
  // One turn: prints the answer and keeps it, or keeps nothing of the turn. Gives up soon after the interrupt.
  std::function<Status(const std::string& line, AnswerPrinter& printer, const Interrupt& interrupt)> say;
  std::function<void()> start_anew;
};

// Standard input to its end or to /quit; gives the exit status.
int converse(const Talk& talk);

// One dim line after an answer.
void print_usage(const serve::AnswerUsage& usage, const std::string& finish_reason, AnswerPrinter& printer);

}  // namespace perigee::apps
