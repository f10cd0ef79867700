// What    Runs a recorded request again and compares every bit:
//           generation  the same request through a service of its own; the ids and log-probabilities it makes
//           scoring     one forward pass over the recorded ids, whatever chose them; their log-probabilities
// Owner   engine.
// Threads One call at a time.
// Errors  A Result when the request cannot run on this engine: ids, length or memory.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"
#include "engine/record.h"

namespace perigee::engine {

// The first token that is not the recorded one.
struct ReplayDifference {
  int64_t position = 0;  // in the whole sequence, the prompt included
  std::optional<int32_t> recorded_id;  // absent: the record had ended
  std::optional<int32_t> id;           // absent: the replay had ended
  double recorded_logprob = 0;
  double logprob = 0;
};

struct ReplayPart {
  std::string skipped;  // why it did not run; empty: it did
  std::optional<ReplayDifference> difference;
};

struct ReplayReport {
  int64_t tokens = 0;  // generated ones, in the record
  ReplayPart generation;
  ReplayPart scoring;

  bool equal() const { return !generation.difference && !scoring.difference; }
};

Result<ReplayReport> replay(Engine& engine, const RequestRecord& record);

}  // namespace perigee::engine
