// What    A step as the device's operations read it: its ids, its parts and their block tables.
// Owner   model/decoder.
// Threads One step at a time.
// Errors  Result when memory is refused.
//
// On a GPU everything lies in one piece of memory that is copied once a step. Where ids and parts stand in it depends on the
// number of rows alone, so that a graph captured for that number finds the next step's there.
#pragma once

#include <vector>

#include "base/result.h"
#include "model/step.h"
#include "ops/context.h"
#include "tensor/arena.h"
#include "tensor/gpu.h"
#include "tensor/parts.h"

namespace perigee::model {

class StepTables {
 public:
  explicit StepTables(const ops::Context& context) : context_(context) {}

  // Takes in a step; on a GPU the copy goes to the context's stream.
  Status fill(const Step& step);

  const tensor::Tensor& ids() const { return ids_; }  // [T] i32
  const tensor::Parts& parts() const { return parts_; }

 private:
  Status reserve(size_t bytes);

  ops::Context context_;
  std::vector<tensor::Part> host_;
  tensor::Tensor ids_;
  tensor::Parts parts_;
  tensor::PinnedMemory staging_;
  tensor::GpuArena device_;
};

}  // namespace perigee::model
