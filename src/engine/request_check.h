// What    Refuses what can never run, while the caller waits.
// Owner   engine.
// Threads Pure function.
// Errors  One sentence that names the field.
#pragma once

#include "base/result.h"
#include "engine/backend.h"
#include "engine/engine.h"

namespace perigee::engine {

// Lengths against the longest context, ids against the vocabulary.
Status check_request(const Engine& engine, const BackendInfo& info, const TokenRequest& request);

}  // namespace perigee::engine
