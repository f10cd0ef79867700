// What    Moves every weight from its file, or from nowhere, to its place, in the layout that operations read.
// Owner   model; a part of load_weights.
// Threads Runs on the context's pool; the result does not depend on the number of threads.
// Errors  One sentence that names file and tensor for values that the device's layout cannot hold, or the file that a read failed
//         on; all else was audited before.
#pragma once

#include <vector>

#include "model/weights_place.h"

namespace perigee::model {

Status fill_weights(const ops::Context& context, const Config& config,
                    const std::vector<WeightItem>& items, const Placement& placement,
                    Weights& weights, const LoadOptions& options);

}  // namespace perigee::model
