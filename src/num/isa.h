// What    The vector instruction sets that a CPU kernel is compiled for; the bits are the same in all of them.
// Owner   num.
// Threads Constants.
// Errors  None.
#pragma once

namespace perigee {

enum class Isa { kGeneric, kAvx2, kAvx512 };

}  // namespace perigee
