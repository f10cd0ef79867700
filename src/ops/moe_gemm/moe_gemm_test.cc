#include "ops/moe_gemm/moe_gemm.h"

#include "num/formats.h"
#include "ops/gemm/gemm.h"
#include "ops/gemm/gemm_cases.h"
#include "ops/moe_gemm/moe_gemm_cases.h"
#include "ops/op_test.h"

namespace perigee::ops {
namespace {

using tensor::WeightLayout;
using testing::view;

// The experts of a case as on disk and packed.
struct Experts {
  int64_t n;
  int64_t k;
  std::vector<Mxfp4Rows> rows;
  std::vector<std::vector<uint8_t>> packed;

  Experts(int64_t count, int64_t n_, int64_t k_, uint64_t seed, int low = -8, int high = 0)
      : n(n_), k(k_) {
    for (int64_t e = 0; e < count; ++e) {
      rows.push_back(random_mxfp4(seed + 10 * static_cast<uint64_t>(e), n, k, low, high));
    }
    pack();
  }
  void pack() {
    packed.clear();
    for (const Mxfp4Rows& r : rows) {
      packed.emplace_back(static_cast<size_t>(moe_packed_bytes(WeightLayout::kTiledMxfp4, n, k)), uint8_t{0xee});
      moe_pack_mxfp4(WeightLayout::kTiledMxfp4, r.codes.data(), r.scales.data(), n, k, packed.back().data(), n, 0);
    }
  }
  std::vector<Weight> cpu() const {
    std::vector<Weight> out;
    for (const auto& p : packed)
      out.push_back({WeightLayout::kTiledMxfp4, n, k, p.data(), nullptr});
    return out;
  }
  std::vector<Weight> reference() const {
    std::vector<Weight> out;
    for (const Mxfp4Rows& r : rows) {
      out.push_back({WeightLayout::kRowMajorMxfp4, n, k, r.codes.data(), r.scales.data()});
    }
    return out;
  }
  float code(int64_t e, int64_t row, int64_t column) const {
    const uint8_t byte = rows[e].codes[(row * k + column) / 2];
    return from_e2m1(column % 2 == 0 ? byte & 15 : byte >> 4);
  }
  uint8_t scale(int64_t e, int64_t row, int64_t column) const {
    return rows[e].scales[(row * k + column) / 32];
  }
};

// Tokens grouped by expert.
struct Groups {
  std::vector<int32_t> offsets;
  std::vector<int32_t> source;
};

Groups group(const std::vector<int32_t>& ids, int64_t active, int64_t experts) {
  Groups g{{0}, {}};
  for (int32_t e = 0; e < experts; ++e) {
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] == e) g.source.push_back(static_cast<int32_t>(i) / static_cast<int32_t>(active));
    }
    g.offsets.push_back(static_cast<int32_t>(g.source.size()));
  }
  return g;
}

template <class Out, class Act>
std::vector<Out> product(const Context& context, const std::vector<Act>& x, int64_t k,
                         const Groups& g, const std::vector<Weight>& experts) {
  const auto slots = static_cast<int64_t>(g.source.size());
  const int64_t n = experts[0].n;
  std::vector<Out> out(static_cast<size_t>(slots * n));
  const Tensor source = view(g.source, {slots});
  moe_gemm(context, view(x, {static_cast<int64_t>(x.size()) / k, k}), &source,
           view(g.offsets, {static_cast<int64_t>(g.offsets.size())}), experts,
           view(out, {slots, n}));
  return out;
}

std::vector<Context> contexts() {
  std::vector<Context> out;
  for (const Isa isa : testing::isas()) out.push_back(testing::cpu(isa, 2));
  if (cpu_features().amx) {
    out.push_back(testing::cpu(Isa::kAvx512, 2));
    out.back().amx = true;
  } else {
    static const bool told = [] {
      std::cout << "[ SKIPPED  ] AMX: this machine lacks it" << std::endl;
      return true;
    }();
    (void)told;
  }
  return out;
}

// The contract's arithmetic, written once more as plainly as possible.
float by_definition(const Experts& experts, int64_t e, int64_t n, const bf16* x) {
  float total = 0;
  for (int64_t s = 0; s < experts.k; s += kGemmSegment) {
    float acc = 0;
    for (int64_t b = s; b < std::min(experts.k, s + kGemmSegment); b += 32) {
      float chain[2] = {0, 0};
      for (int64_t c = b; c < b + 32; ++c) {
        const float xc = std::abs(to_float(x[c])) < 0x1p-101f ? 0.0f : to_float(x[c]);
        chain[c % 2] = std::fma(xc, experts.code(e, n, c), chain[c % 2]);
      }
      const uint8_t byte = experts.scale(e, n, b);
      const float scale = byte == 0 ? 0.0f : byte == 255 ? NAN : std::ldexp(1.0f, byte - 127);
      acc = std::fma(scale, chain[0] + chain[1], acc);
    }
    total = s == 0 ? acc : total + acc;
  }
  return total;
}

bool same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || float_bits(a) == float_bits(b);
}

TEST(MoeGemm, ReferenceOnHandNumbers) {
  // One row, 32 columns: 1.5, -6, then zeros; scale 2^1.
  std::vector<uint8_t> codes(16, 0);
  codes[0] = 0xf3;
  const std::vector<uint8_t> scales = {128};
  const std::vector<Weight> w = {
      {WeightLayout::kRowMajorMxfp4, 1, 32, codes.data(), scales.data()}};
  std::vector<double> x(64, 7.0);
  x[32] = 10;
  x[33] = 100;
  EXPECT_EQ((product<double>(testing::reference(), x, 32, {{0, 2}, {1, 0}}, w)),
            (std::vector<double>{2 * (15.0 - 600), 2 * (10.5 - 42)}));
}

TEST(MoeGemm, PackedLayoutIsCodesThenScales) {
  const int64_t n = 19;
  const int64_t k = 96;
  const Mxfp4Rows rows = random_mxfp4(1, n, k);
  ASSERT_EQ(moe_packed_bytes(WeightLayout::kTiledMxfp4, n, k), 32 * k * 17 / 32);
  std::vector<uint8_t> packed(static_cast<size_t>(moe_packed_bytes(WeightLayout::kTiledMxfp4, n, k)), 0xee);
  // Two tensors stacked into one matrix, the second one first.
  moe_pack_mxfp4(WeightLayout::kTiledMxfp4, rows.codes.data() + 7 * k / 2, rows.scales.data() + 7 * k / 32, 12, k,
                 packed.data(), n, 7);
  moe_pack_mxfp4(WeightLayout::kTiledMxfp4, rows.codes.data(), rows.scales.data(), 7, k, packed.data(), n, 0);
  for (int64_t r = 0; r < 32; ++r) {
    const uint8_t* const panel = packed.data() + r / 16 * (k * 16 * 17 / 32);
    for (int64_t c = 0; c < k; c += 2) {
      const uint8_t want = r < n ? rows.codes[(r * k + c) / 2] : 0;
      EXPECT_EQ(panel[c / 8 * 64 + r % 16 * 4 + c % 8 / 2], want) << r << " " << c;
    }
    for (int64_t b = 0; b < k / 32; ++b) {
      EXPECT_EQ(panel[k * 8 + b * 16 + r % 16], r < n ? rows.scales[r * k / 32 + b] : 127);
    }
  }
}

TEST(MoeGemm, EveryInstructionSetIsTheDefinition) {
  struct Range {
    int low, high;
    Values values;
  };
  // Ordinary numbers; then scales and activations at both ends of what the formats hold.
  const Range ranges[] = {{-8, 0, Values::kPlain},
                          {-127, 128, Values::kPlain},
                          {-20, 20, Values::kTiny},
                          {-127, -90, Values::kTiny},
                          {-8, 8, Values::kSpecial}};
  for (const MoeCase& c : kMoeTestCases) {
    for (const Range& range : ranges) {
      const Experts experts(c.experts, c.n, c.k, 100, range.low, range.high);
      const std::vector<bf16> x = random_bf16(200, c.tokens * c.k, 3.0f, range.values);
      const Groups g = group(random_experts(300, c), c.active, c.experts);
      for (const Context& context : contexts()) {
        const std::vector<float> got = product<float>(context, x, c.k, g, experts.cpu());
        FlushDenormals flush;
        for (int64_t e = 0; e < c.experts; ++e) {
          for (int64_t i = g.offsets[e]; i < g.offsets[e + 1]; ++i) {
            for (int64_t n = 0; n<c.n; n += c.k> 1000 ? 3 : 1) {
              const float want = by_definition(experts, e, n, &x[g.source[i] * c.k]);
              ASSERT_TRUE(same(got[i * c.n + n], want))
                  << got[i * c.n + n] << " " << want << ": slot " << i << ", output " << n << ", k "
                  << c.k << ", scales " << range.low << ", " << testing::isa_name(context.isa);
            }
          }
        }
      }
    }
  }
}

// Scaling a block's sum and dequantising before the product are the same bits.
TEST(MoeGemm, EqualsTheDenseProductOfDequantisedWeights) {
  for (const MoeCase& c : kMoeTestCases) {
    const Experts experts(c.experts, c.n, c.k, 400, -30, 30);
    const std::vector<bf16> x = random_bf16(500, c.tokens * c.k, 3.0f);
    const Groups g = group(random_experts(600, c), c.active, c.experts);
    std::vector<std::vector<std::byte>> packed;
    std::vector<Weight> dense;
    for (int64_t e = 0; e < c.experts; ++e) {
      std::vector<bf16> rows;
      for (int64_t i = 0; i < c.n * c.k; ++i) {
        const float value =
            std::ldexp(experts.code(e, i / c.k, i % c.k), experts.scale(e, i / c.k, i % c.k) - 127);
        rows.push_back(to_bf16(value));
        ASSERT_EQ(to_float(rows.back()), value);
      }
      packed.emplace_back(static_cast<size_t>(gemm_packed_bytes(WeightLayout::kTiledBf16, c.n, c.k)));
      gemm_pack_rows(WeightLayout::kTiledBf16, rows.data(), c.n, c.k, c.k, packed.back().data(), c.n, 0);
      dense.push_back({WeightLayout::kTiledBf16, c.n, c.k, packed.back().data(), nullptr});
    }
    for (const Context& context : contexts()) {
      const std::vector<float> got = product<float>(context, x, c.k, g, experts.cpu());
      EXPECT_TRUE(testing::same_bits(got, product<float>(context, x, c.k, g, dense)));
      for (int64_t e = 0; e < c.experts; ++e) {
        for (int64_t i = g.offsets[e]; i < g.offsets[e + 1]; ++i) {
          std::vector<float> row(static_cast<size_t>(c.n));
          gemm(context, view(x, {c.tokens, c.k}).slice(g.source[i], 1), dense[e],
               view(row, {1, c.n}));
          ASSERT_EQ(0, std::memcmp(row.data(), &got[i * c.n], row.size() * 4)) << "slot " << i;
        }
      }
    }
  }
}

TEST(MoeGemm, StaysWithinTheBoundOfTheReference) {
  for (const MoeCase& c : kMoeTestCases) {
    const Experts experts(c.experts, c.n, c.k, 700);
    const std::vector<bf16> x = random_bf16(800, c.tokens * c.k, 3.0f);
    const Groups g = group(random_experts(900, c), c.active, c.experts);
    const std::vector<double> want =
        product<double>(testing::reference(), testing::widen(x), c.k, g, experts.reference());
    const double roundings =
        18 + static_cast<double>(std::min<int64_t>(c.k / 32, 56) + c.k / kGemmSegment);
    std::vector<double> bound;
    for (int64_t e = 0; e < c.experts; ++e) {
      for (int64_t i = g.offsets[e]; i < g.offsets[e + 1]; ++i) {
        for (int64_t n = 0; n < c.n; ++n) {
          double magnitude = 0;
          for (int64_t k = 0; k < c.k; ++k) {
            magnitude += std::abs(to_float(x[g.source[i] * c.k + k]) *
                                  std::ldexp(experts.code(e, n, k), experts.scale(e, n, k) - 127));
          }
          bound.push_back(roundings * testing::kRound32 * magnitude);
        }
      }
    }
    const Context context = testing::cpu(testing::isas().back(), 2);
    testing::expect_within(product<float>(context, x, c.k, g, experts.cpu()), want,
                           [&](size_t i) { return bound[i]; });
    testing::expect_within(product<bf16>(context, x, c.k, g, experts.cpu()), want, [&](size_t i) {
      return bound[i] + testing::kRound16 * (std::abs(want[i]) + bound[i]);
    });
  }
}

// Every (token, expert) pair alone, then among any company.
TEST(MoeGemm, ARowsBitsDoNotDependOnItsSurroundings) {
  const int64_t experts = 3;
  const int64_t n = 50;
  const int64_t k = 1920;
  const Experts weights(experts, n, k, 1000);
  const std::vector<bf16> x = random_bf16(1100, 16 * k, 3.0f);
  for (const WeightLayout layout : {WeightLayout::kTiledMxfp4, WeightLayout::kTiledBf16}) {
    std::vector<Weight> w = weights.cpu();
    std::vector<std::vector<std::byte>> packed;
    for (int64_t e = 0; layout == WeightLayout::kTiledBf16 && e < experts; ++e) {
      packed.emplace_back(static_cast<size_t>(gemm_packed_bytes(WeightLayout::kTiledBf16, n, k)));
      gemm_pack_rows(WeightLayout::kTiledBf16, random_bf16(1200 + e, n * k, 0.1f).data(), n, k, k, packed.back().data(), n,
                     0);
      w[e] = {layout, n, k, packed.back().data(), nullptr};
    }
    std::vector<std::vector<float>> alone;  // [token * experts + expert]
    for (int32_t t = 0; t < 16; ++t) {
      for (int64_t e = 0; e < experts; ++e) {
        Groups g{std::vector<int32_t>(experts + 1, 0), {t}};
        std::fill(g.offsets.begin() + e + 1, g.offsets.end(), 1);
        alone.push_back(product<float>(testing::cpu(Isa::kGeneric), x, k, g, w));
      }
    }
    for (Context context : contexts()) {
      for (const int threads : {1, 2, 3}) {
        context.pool = testing::pool(threads);
        for (const int64_t tokens : {1, 2, 7, 64}) {
          std::vector<int32_t> ids;
          Groups g{{0}, {}};
          for (int64_t e = 0; e < experts; ++e) {
            for (int64_t t = 0; t < tokens; ++t) {
              if ((t + e) % 3 != 0) continue;
              g.source.push_back(static_cast<int32_t>(random_bits(13, t + tokens) % 16));
            }
            g.offsets.push_back(static_cast<int32_t>(g.source.size()));
          }
          for (int repeat = 0; repeat < 3; ++repeat) {
            const std::vector<float> out = product<float>(context, x, k, g, w);
            for (int64_t e = 0; e < experts; ++e) {
              for (int64_t i = g.offsets[e]; i < g.offsets[e + 1]; ++i) {
                ASSERT_EQ(0,
                          std::memcmp(&out[i * n], alone[g.source[i] * experts + e].data(), n * 4))
                    << threads << " threads, slot " << i;
              }
            }
          }
        }
      }
    }
  }
}

TEST(MoeGemm, WithoutASourceSlotsReadTheirOwnRows) {
  const Experts experts(2, 24, 64, 1300);
  const std::vector<bf16> x = random_bf16(1400, 10 * 70, 1.0f);
  testing::Rows<bf16> rows(x, 64, testing::iota(10), 6);
  const std::vector<int32_t> offsets = {0, 4, 10};
  const std::vector<int32_t> all = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  for (const Context& context : contexts()) {
    testing::Rows<bf16> out(10, 24, 3);
    moe_gemm(context, rows.tensor(), nullptr, view(offsets, {3}), experts.cpu(), out.tensor());
    EXPECT_TRUE(testing::same_bits(
        out.dense(), product<bf16>(context, rows.dense(), 64, {offsets, all}, experts.cpu())));
  }
}

TEST(MoeGemm, ScaleBytesAtTheEnds) {
  Experts experts(1, 16, 64, 1500);
  experts.rows[0].scales = std::vector<uint8_t>(32, 127);
  experts.rows[0].scales[2 * 3] = 255;  // NaN
  experts.rows[0].scales[2 * 4] = 0;    // 2^-127, flushed
  experts.pack();
  std::vector<bf16> x(64);
  for (int64_t i = 0; i < 32; ++i) x[i] = to_bf16(1.0f + static_cast<float>(i));
  for (const Context& context : contexts()) {
    const std::vector<float> out = product<float>(context, x, 64, {{0, 1}, {0}}, experts.cpu());
    for (int64_t n = 0; n < 16; ++n) {
      if (n == 3) {
        EXPECT_EQ(float_bits(out[n]), 0x7fc00000u);
      } else if (n == 4) {
        EXPECT_EQ(out[n], 0.0f);
      } else {
        EXPECT_NE(out[n], 0.0f);
      }
    }
  }
}

TEST(MoeGemmDeathTest, WrongIndicesAreBugs) {
  const Experts experts(2, 16, 32, 1600);
  const std::vector<bf16> x(64);
  EXPECT_DEATH((product<float>(testing::cpu(), x, 32, {{0, 1, 2}, {0, 2}}, experts.cpu())), "row");
  EXPECT_DEATH((product<float>(testing::cpu(), x, 32, {{0, 2, 1}, {0, 1}}, experts.cpu())), "at");
}

}  // namespace
}  // namespace perigee::ops
