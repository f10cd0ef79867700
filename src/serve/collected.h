// What    The pieces of one choice put together, for replies that come whole.
// Owner   serve.
// Threads Plain data.
// Errors  None.
#pragma once

#include <string>
#include <vector>

#include "engine/backend.h"
#include "text/output_parser.h"

namespace perigee::serve {

struct Collected {
  struct Call {
    int index = 0;
    std::string name;
    std::string arguments;
    bool complete = false;
  };
  std::string reasoning;
  std::string content;
  std::vector<Call> calls;
  std::vector<engine::TokenLogprob> tokens;

  void add(const std::vector<text::OutputEvent>& pieces) {
    using Kind = text::OutputEvent::Kind;
    for (const text::OutputEvent& piece : pieces) {
      if (piece.kind == Kind::kReasoning) reasoning += piece.text;
      if (piece.kind == Kind::kContent) content += piece.text;
      if (piece.kind == Kind::kCallBegin) calls.push_back({piece.call, piece.text, {}, false});
      if (piece.kind == Kind::kArguments) calls.back().arguments += piece.text;
      if (piece.kind == Kind::kCallEnd) calls.back().complete = true;
    }
  }
  void add(std::vector<engine::TokenLogprob>& more) {
    for (engine::TokenLogprob& token : more) tokens.push_back(std::move(token));
  }
  std::vector<int32_t> ids() const {
    std::vector<int32_t> out;
    out.reserve(tokens.size());
    for (const engine::TokenLogprob& token : tokens) out.push_back(token.id);
    return out;
  }
};

}  // namespace perigee::serve
