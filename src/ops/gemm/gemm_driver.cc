#include "ops/gemm/gemm_driver.h"

#include <cstdlib>
#include <cstring>

namespace perigee::ops::cpu {
namespace {

struct Buffer {
  void* data = nullptr;
  int64_t bytes = 0;
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { std::free(data); }
};

thread_local Buffer buffers[static_cast<int>(Scratch::kCount)];

}  // namespace

void* scratch_bytes(Scratch purpose, int64_t bytes) {
  Buffer& buffer = buffers[static_cast<int>(purpose)];
  if (buffer.bytes < bytes) {
    std::free(buffer.data);
    const int64_t rounded = (bytes + 4095) / 4096 * 4096;
    buffer.data = std::aligned_alloc(64, static_cast<size_t>(rounded));
    CHECK(buffer.data != nullptr);
    buffer.bytes = rounded;
  }
  return buffer.data;
}

void run_balanced(ThreadPool& pool, std::span<const Work> work,
                  const std::function<void(int64_t, int64_t, int64_t)>& body) {
  int64_t total = 0;
  for (const Work& w : work) total += w.units * w.unit_cost;
  if (total == 0) return;
  const int64_t parts = int64_t{pool.threads()} * ThreadPool::kShareParts;
  pool.parallel_for(parts, [&](int64_t first, int64_t last) {
    const int64_t low = static_cast<int64_t>(static_cast<__int128>(total) * first / parts);
    const int64_t high = static_cast<int64_t>(static_cast<__int128>(total) * last / parts);
    int64_t start = 0;  // cost of all units before this item's first
    for (int64_t i = 0; i < static_cast<int64_t>(work.size()) && start < high; ++i) {
      const int64_t cost = work[i].unit_cost;
      // A unit belongs to the part in which its first cost point lies.
      const auto unit_at = [&](int64_t point) {
        return std::clamp<int64_t>((point - start + cost - 1) / cost, 0, work[i].units);
      };
      const int64_t begin = low <= start ? 0 : unit_at(low);
      const int64_t end = unit_at(high);
      if (begin < end) body(i, begin, end);
      start += work[i].units * cost;
    }
  });
}

void amx_pack_tile(const bf16* const* rows, int64_t row_count, int64_t k, const AmxRows& to, int64_t t) {
  for (int64_t first = 0; first < to.blocks; first += to.sub_blocks) {
    std::byte* line = to.at(first, t);
    for (int64_t b = first; b < std::min(first + to.sub_blocks, to.blocks); ++b) {
      const int64_t c = b * kGemmBlock;
      const size_t bytes = static_cast<size_t>(std::min(kGemmBlock, k - c)) * sizeof(bf16);
      for (int64_t r = 0; r < 16; ++r, line += 64) {
        if (r < row_count && bytes == 64) {
          std::memcpy(line, rows[r] + c, 64);
        } else {
          std::memset(line, 0, 64);
          if (r < row_count) std::memcpy(line, rows[r] + c, bytes);
        }
      }
    }
  }
}

ExponentRange exponent_range(Isa isa, const bf16* const* rows, int64_t row_count, int64_t k) {
  uint16_t low = 0xffff;
  uint16_t high = 0;
  with_isa(isa, [&]<Isa set>() {
    for (int64_t r = 0; r < row_count; ++r) gemm_exponents<set>(rows[r], k, &low, &high);
  });
  return {(low >> 7) - 127, (high >> 7) - 127};
}

// A pair of panels over a sub-segment waits in L1 while all row tiles pass by from L2, so weights are read once from memory. All
// that moves is contiguous: activations in the order of their use, each accumulator tile in one piece. Meanwhile the next pair is
// fetched. docs/kernels/gemm.md has the orders that were tried.
void amx_segment(const AmxSegment& s) {
#if defined(__x86_64__)
  const int64_t floats = s.panels * s.row_tiles * kAmxTileFloats;
  const bool first = s.block == 0;
  float* const acc = first ? s.totals : scratch<float>(Scratch::kPart, floats);
  const int64_t panel_floats = s.row_tiles * kAmxTileFloats;
  for (int64_t b = 0; b < s.blocks; b += s.a.sub_blocks) {
    const int64_t blocks = std::min(s.a.sub_blocks, s.blocks - b);
    for (int64_t p = 0; p < s.panels; p += 2) {
      AmxBlock block;
      block.w = s.w.data + p * s.w.panel_bytes + b * kAmxTileBytes;
      block.w_panel_bytes = s.w.panel_bytes;
      block.panels = static_cast<int>(std::min<int64_t>(2, s.panels - p));
      block.blocks = blocks;
      block.first = b == 0;
      block.acc_panel_floats = panel_floats;
      const uint8_t* const next =
          p + 2 < s.panels ? block.w + 2 * s.w.panel_bytes : s.w.data + (b + blocks) * kAmxTileBytes;
      const int64_t lines = blocks * kAmxTileBytes / 64;  // of one panel
      for (int64_t t = 0; t < s.row_tiles; t += 2) {
        for (int64_t i = lines * t / s.row_tiles; s.row_tiles > 2 && i < lines * (t + 2) / s.row_tiles; ++i) {
          __builtin_prefetch(next + i * 64, 0, 2);
          __builtin_prefetch(next + s.w.panel_bytes + i * 64, 0, 2);
        }
        block.a = s.a.at(s.block + b, s.first_tile + t);
        block.a_tile_bytes = blocks * kAmxTileBytes;
        block.row_tiles = static_cast<int>(std::min<int64_t>(2, s.row_tiles - t));
        block.acc = acc + p * panel_floats + t * kAmxTileFloats;
        amx_block(block);
      }
    }
  }
  if (!first) gemm_add<Isa::kAvx512>(s.totals, acc, floats);
#else
  (void)s;
#endif
}

}  // namespace perigee::ops::cpu
