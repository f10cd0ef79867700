// What    How the 32 lanes of a warp exchange values, one name each on every GPU.
// Owner   ops. Included by GPU sources only.
// Threads All lanes of a warp take part.
// Errors  None.
//
// On wider wavefronts every half is a warp of its own.
#pragma once

namespace perigee::ops::gpu {

constexpr int kLanes = 32;

// The value of the lane whose number differs by `mask`.
template <class T>
__device__ inline T lane_xor(T x, int mask) {
#if defined(__HIP_PLATFORM_AMD__)
  return __shfl_xor(x, mask, kLanes);
#else
  return __shfl_xor_sync(0xffffffffu, x, mask);
#endif
}

// The value of lane `lane`.
template <class T>
__device__ inline T lane_value(T x, int lane) {
#if defined(__HIP_PLATFORM_AMD__)
  return __shfl(x, lane, kLanes);
#else
  return __shfl_sync(0xffffffffu, x, lane);
#endif
}

// What lanes read before it is read before any of them writes after it, and the other way round.
__device__ inline void warp_barrier() {
#if defined(__HIP_PLATFORM_AMD__)
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
#else
  __syncwarp();
#endif
}

}  // namespace perigee::ops::gpu
