// What    One step's decisions as plain data: which rows are cleared and copied, which tokens of which requests run.
// Owner   sched. Made by sched/scheduler, carried out by the engine in the order of the members.
// Threads Plain data.
// Errors  None.
#pragma once

#include <cstdint>
#include <vector>

namespace perigee::sched {

using RequestId = uint64_t;
using RowId = int32_t;  // row of the cache pool

// Copies the records of a row's first `tokens` tokens (attention rows), or the whole row (states, tokens = 0).
struct RowCopy {
  RowId from = 0;
  RowId to = 0;
  int64_t tokens = 0;
};

struct PlanPart {
  RequestId request = 0;
  int32_t slot = 0;      // of the running request, 0 <= slot < max_num_seqs: its open-chunk buffers
  int64_t position = 0;  // tokens already in the cache
  int64_t tokens = 0;    // to run now
  bool sample = false;   // the last of them is the last known one: choose the next
};

struct StepPlan {
  std::vector<RowId> clear;             // state rows of fresh sequences: zeros
  std::vector<RowCopy> copies_before;   // resumed states and half-filled blocks
  std::vector<PlanPart> parts;          // decode first
  std::vector<RowCopy> snapshots;       // after the forward pass: state rows that stay behind in the prefix index

  bool empty() const { return parts.empty(); }
};

}  // namespace perigee::sched
