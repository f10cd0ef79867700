// What    The dimensions that the GPU operations take.
// Owner   model.
// Threads Pure function.
// Errors  One sentence that names the configuration's key, its value, what a GPU takes and the way out.
#pragma once

#include "base/result.h"
#include "model/config.h"

namespace perigee::model {

Status check_gpu_limits(const Config& config);

}  // namespace perigee::model
