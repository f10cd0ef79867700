// What    The e4m3 matrix instruction of index scores on compute capability 9.0.
// Owner   ops/index_score.
// Threads A warpgroup of 128 threads.
// Errors  None.
// Source  PTX ISA, "Asynchronous Warpgroup Level Matrix": shared memory in rows of 128 bytes, pieces of 16 bytes swizzled within
//         eight rows.
#pragma once

#include <cstdint>

namespace perigee::ops::gpu {

constexpr int kWgmmaHeads = 32;

// Where byte `column` of row `row` lies in a swizzled tile of rows of 128 bytes, which starts at a multiple of 1,024.
__device__ inline int swizzled(int row, int column) { return row * 128 + ((column / 16) ^ (row % 8)) * 16 + column % 16; }

// Where `p` lies in shared memory. HIP's pointers have it in their lower half.
__device__ inline uint64_t shared_address(const void* p) {
#if defined(__HIP_PLATFORM_AMD__)
  return reinterpret_cast<uint64_t>(p) & 0xffffffffu;
#else
  return static_cast<uint64_t>(__cvta_generic_to_shared(p));
#endif
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
__device__ inline uint64_t wgmma_tile(const void* p) {
  const uint64_t address = shared_address(p);
  return address >> 4 | uint64_t{1} << 16 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}

// acc = keys [64, 128] times queries [32, 128]^T: four steps of 32 columns from zero. Lane layout as mma m16n8k16: warp w has
// keys 16 w + g and + 8, acc[4 i + j] belongs to head 8 i + 2 t + j mod 2.
__device__ inline void wgmma_e4m3(const uint8_t* keys, const uint8_t* queries, float (&acc)[16]) {
  const uint64_t a = wgmma_tile(keys);
  const uint64_t b = wgmma_tile(queries);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, %16, %17, p, 1, 1;\n}"
        : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3]), "+f"(acc[4]), "+f"(acc[5]), "+f"(acc[6]), "+f"(acc[7]),
          "+f"(acc[8]), "+f"(acc[9]), "+f"(acc[10]), "+f"(acc[11]), "+f"(acc[12]), "+f"(acc[13]), "+f"(acc[14]), "+f"(acc[15])
        : "l"(a + static_cast<uint64_t>(step) * 2), "l"(b + static_cast<uint64_t>(step) * 2), "r"(step));
  }
  asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
}

// Makes ordinary writes to shared memory visible to the matrix instruction.
__device__ inline void wgmma_publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
#endif

}  // namespace perigee::ops::gpu
