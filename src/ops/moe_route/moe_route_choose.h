// What    Exact choice of the best experts of one token, shared by the reference and the CPU.
// Owner   ops/moe_route.
// Threads Pure function.
// Errors  None.
#pragma once

#include <cstdint>
#include <limits>

namespace perigee::ops {

// Fills ids with the `active` largest keys, descending, ties to the lowest id; NaN counts as minus infinity.
// `best` is scratch for `active` keys.
template <class Real>
void choose_experts(const Real* keys, int64_t experts, int64_t active, Real* best, int32_t* ids) {
  int64_t held = 0;
  for (int64_t e = 0; e < experts; ++e) {
    const Real key = keys[e] == keys[e] ? keys[e] : -std::numeric_limits<Real>::infinity();
    if (held == active && !(key > best[active - 1])) continue;
    int64_t at = held < active ? held++ : active - 1;
    // Earlier ids stay in front of an equal key.
    for (; at > 0 && key > best[at - 1]; --at) {
      best[at] = best[at - 1];
      ids[at] = ids[at - 1];
    }
    best[at] = key;
    ids[at] = static_cast<int32_t>(e);
  }
}

}  // namespace perigee::ops
