// What    What the next token may be: an automaton over token ids that a sampler asks before it chooses and tells what it chose.
// Owner   text. Made by text/grammar from a schema, regex, choice or the tools of a request; asked by the engine.
// Threads One sequence, one thread at a time.
// Errors  accept() of a token that is not allowed is a bug of the caller.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

namespace perigee::text {

class Constraint {
 public:
  virtual ~Constraint() = default;
  // Sets bit i of word i / 32 for every allowed id i < 32 * mask.size(). Returns false, and leaves the mask alone, when every id
  // is allowed at present (free text, the think channel).
  virtual bool fill_mask(std::span<uint32_t> mask) = 0;
  virtual void accept(int32_t id) = 0;
  // Takes back the last `tokens` accepted ones (a rejected draft).
  virtual void rollback(int64_t tokens) = 0;
  // A second sequence that goes on from the present state.
  virtual std::unique_ptr<Constraint> clone() const = 0;
};

}  // namespace perigee::text
