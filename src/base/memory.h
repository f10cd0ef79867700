// What    How much memory the process may still take.
// Owner   base.
// Threads Any; reads the system's files at each call.
// Errors  None; SIZE_MAX when the system does not tell.
#pragma once

#include <cstddef>

namespace perigee {

// The smaller of what the machine has available and what the process's control group allows.
size_t available_memory();

// Resident bytes of this process and their peak; 0 when unknown.
size_t resident_memory();
size_t resident_memory_peak();

}  // namespace perigee
