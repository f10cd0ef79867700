#include "ops/index_score/index_score_simd.h"

#include "num/dot_tile.h"
#include "num/record_simd.h"
#include "ops/gemm/gemm_micro.h"

namespace perigee::ops::cpu {
namespace {

using namespace simd;

constexpr int kV = kIndexPanels;

void load_scales(KeyFormat format, const uint8_t* from, int64_t groups, int64_t stride, float* to) {
  for (int64_t g = 0; g < groups; ++g) {
    to[g * stride] = 1.0f;
    if (format == KeyFormat::kFp8) std::memcpy(to + g * stride, from + 4 * g, 4);
  }
}

// The dots of one vector with the 64 keys. Those of several groups take the scales of queries and keys in.
PERIGEE_INLINE void gather(const IndexRows& rows, const float* dots, const float* key_scales,
                           int64_t vector, f32x16 (&out)[kV]) {
  const int64_t panel = rows.padded_vectors * 16;
  const float* const from = dots + vector * 16;
  if (rows.groups == 1) {
    for (int v = 0; v < kV; ++v) out[v] = load(from + v * panel);
    return;
  }
  for (int v = 0; v < kV; ++v) out[v] = zero();
  for (int64_t g = 0; g < rows.groups; ++g) {
    const f32x16 scale = set1(rows.query_scales[vector * rows.groups + g]);
    for (int v = 0; v < kV; ++v) {
      const f32x16 both = mul(scale, load(key_scales + g * 64 + v * 16));
      out[v] = fma(both, load(from + (g * kV + v) * panel), out[v]);
    }
  }
}

}  // namespace

template <>
void IndexKernels<Isa::PERIGEE_ISA>::query(KeyFormat format, const IndexWidth& w, const bf16* q,
                                           uint8_t* bytes, bf16* out, float* scales) {
  uint8_t* const record_scales = bytes + key_value_bytes(format, w.width);
  encode_key(format, q, w.width, bytes, record_scales);
  widen_key(format, bytes, record_scales, w.width, out);
  for (int64_t d = w.width; d < w.padded(); ++d) out[d].bits = 0;
  load_scales(format, record_scales, w.groups, 1, scales);
}

template <>
void IndexKernels<Isa::PERIGEE_ISA>::panels(KeyFormat format, const IndexWidth& w,
                                            const uint8_t* page, int64_t n, bf16* rows,
                                            IndexPanels out) {
  const int64_t padded = w.padded();
  for (int64_t panel = 0; panel < kIndexPanels; ++panel) {
    for (int64_t i = 0; i < 16; ++i) {
      const int64_t slot = panel * 16 + i;
      bf16* const row = rows + i * padded;
      if (slot >= n) {
        for (int64_t d = 0; d < padded; ++d) row[d].bits = 0;
        for (int64_t g = 0; g < w.groups; ++g) out.scales[g * 64 + slot] = 1.0f;
        continue;
      }
      const uint8_t* const scales = page + key_scale_offset(format, w.width, slot);
      widen_key(format, page + key_value_offset(format, w.width, slot), scales, w.width, row);
      for (int64_t d = w.width; d < padded; ++d) row[d].bits = 0;
      load_scales(format, scales, w.groups, 64, out.scales + slot);
    }
    for (int64_t b = 0; b < w.blocks; ++b) {
      transpose16(reinterpret_cast<const float*>(rows + b * kIndexBlock), padded / 2,
                  reinterpret_cast<float*>(out.values + (panel * w.blocks + b) * kIndexTile), 16);
    }
  }
}

template <>
void IndexKernels<Isa::PERIGEE_ISA>::dots(const IndexWidth& w, const float* x, int64_t vectors,
                                          const uint8_t* panels, float* out) {
  const int64_t panel_floats = (vectors + 15) / 16 * 256;
  for (int64_t g = 0; g < w.groups; ++g) {
    const int64_t first = g * w.group_blocks;
    const int64_t blocks = w.blocks - first < w.group_blocks ? w.blocks - first : w.group_blocks;
    for (int64_t p = 0; p < kIndexPanels; ++p) {
      micro_segment<false>(x + first * kIndexBlock, w.padded(), vectors,
                           panels + (p * w.blocks + first) * kIndexTile, blocks, nullptr, true,
                           out + (g * kIndexPanels + p) * panel_floats);
    }
  }
}

template <>
void IndexKernels<Isa::PERIGEE_ISA>::scores(const IndexRows& rows, const float* dots,
                                            const float* key_scales) {
  const f32x16 quiet = from_bits(set1i(0x7fc00000));
  for (int64_t r = 0; r < rows.rows; ++r) {
    if (rows.columns[r] <= 0) continue;
    f32x16 sum[kV];
    for (int v = 0; v < kV; ++v) sum[v] = zero();
    for (int64_t h = 0; h < rows.heads; ++h) {
      const int64_t vector = r * rows.heads + h;
      f32x16 dot[kV];
      gather(rows, dots, key_scales, vector, dot);
      f32x16 gate = set1(rows.gates[vector]);
      if (rows.groups == 1) gate = mul(gate, set1(rows.query_scales[vector]));
      // max in this order keeps NaN.
      for (int v = 0; v < kV; ++v) sum[v] = fma(gate, max(zero(), dot[v]), sum[v]);
    }
    bf16* const out = rows.scores + r * rows.score_stride;
    for (int v = 0; v < kV && rows.columns[r] > 16 * v; ++v) {
      const f32x16 score =
          rows.groups == 1 ? mul(load(key_scales + v * 16), sum[v]) : sum[v];
      store_bf16_part(out + 16 * v, select(is_nan(score), quiet, score), rows.columns[r] - 16 * v);
    }
  }
}

}  // namespace perigee::ops::cpu
