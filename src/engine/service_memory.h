// What    How large a service's pool of cache rows becomes, and whether everything that it needs fits.
// Owner   engine; a part of Service::create.
// Threads Pure but for asking the device what is free.
// Errors  One sentence that names the flags which make it fit; nothing has been allocated then.
#pragma once

#include "engine/engine.h"
#include "engine/service.h"

namespace perigee::engine {

struct PoolSize {
  int64_t rows = 0;
  int64_t length = 0;  // longest context that a request may have
};

// `options` with its sizes filled in.
Result<PoolSize> plan_pool(const Engine& engine, const model::StateLayout& layout, const ServiceOptions& options);

}  // namespace perigee::engine
