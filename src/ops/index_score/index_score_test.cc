#include "ops/index_score/index_score.h"

#include <sys/mman.h>

#include <limits>

#include "ops/index_score/index_score_cases.h"

namespace perigee::ops {
namespace {

using testing::IndexCase;
using testing::IndexInputs;
using testing::isas;
using testing::PagedSequence;
using testing::random_half;
using testing::reference;
using testing::widen;

constexpr uint16_t kUntouched = 0x5a5a;

// Every instruction set of this machine, matrix tiles the last.
std::vector<Context> contexts(int threads) {
  std::vector<Context> all;
  for (const Isa isa : isas()) all.push_back(testing::cpu(isa, threads));
  if (cpu_features().amx) {
    all.push_back(all.back());
    all.back().amx = true;
  }
  return all;
}

std::string name_of(const Context& context) {
  return fmt::format("{}{}, {} threads", testing::isa_name(context.isa), context.amx ? " with matrix tiles" : "",
                     context.pool->threads());
}

// How a case is run: in pieces of `chunk` rows per call, with this page layout.
struct Layout {
  int64_t chunk = 1 << 30;
  int64_t block_tokens = 64;
  uint64_t order = 0;
};

// Scores [rows][tokens] of the CPU device; columns that a row does not see keep the bits 0x5a5a.
std::vector<bf16> run(const Context& context, const IndexCase& c, const IndexInputs& in,
                      const Layout& layout = {}) {
  PagedSequence pages(c.tokens, key_bytes(c.format, c.width), layout.block_tokens, layout.order);
  const PageWrite write{0, c.tokens, 0, pages.view()};
  write_keys(context, testing::view(in.keys, {c.tokens, c.width}), c.format, {&write, 1});
  const int64_t stride = c.tokens + 3;
  std::vector<bf16> scores(static_cast<size_t>(c.rows * stride), bf16{kUntouched});
  Tensor out = tensor::view(scores.data(), {c.rows, c.tokens});
  out.row_stride = stride;
  const Tensor q = testing::view(in.q, {c.rows, c.heads, c.width});
  const Tensor gates = testing::view(in.gates, {c.rows, c.heads});
  for (int64_t first = 0; first < c.rows; first += layout.chunk) {
    const int64_t n = std::min(layout.chunk, c.rows - first);
    const IndexSequence s{0, n, c.tokens - c.rows + first, pages.view()};
    index_score(context, q.slice(first, n), gates.slice(first, n), c.format, {&s, 1},
                out.slice(first, n));
  }
  std::vector<bf16> dense;
  for (int64_t t = 0; t < c.rows; ++t) {
    dense.insert(dense.end(), scores.begin() + t * stride, scores.begin() + t * stride + c.tokens);
    for (int64_t p = c.tokens - c.rows + t + 1; p < stride; ++p) {
      EXPECT_EQ(scores[static_cast<size_t>(t * stride + p)].bits, kUntouched)
          << "row " << t << ", column " << p;
    }
  }
  return dense;
}

std::vector<double> run_reference(const IndexCase& c, const IndexInputs& in) {
  std::vector<double> q = widen(in.q), gates = widen(in.gates), keys = widen(in.keys);
  PagedSequence pages(c.tokens, key_bytes(c.format, c.width), 64, 3);
  const PageWrite write{0, c.tokens, 0, pages.view()};
  write_keys(reference(), tensor::view(keys.data(), {c.tokens, c.width}), c.format, {&write, 1});
  std::vector<double> scores(static_cast<size_t>(c.rows * c.tokens), 0.0);
  const IndexSequence s{0, c.rows, c.tokens - c.rows, pages.view()};
  index_score(reference(), tensor::view(q.data(), {c.rows, c.heads, c.width}),
              tensor::view(gates.data(), {c.rows, c.heads}), c.format, {&s, 1},
              tensor::view(scores.data(), {c.rows, c.tokens}));
  return scores;
}

TEST(IndexScore, ReferenceOnHandNumbers) {
  // Two heads of width 2, three keys; gates 1 and -2; scale 1 / sqrt(2 * 2).
  const IndexCase c{KeyFormat::kF64, 2, 2, 3, 1};
  std::vector<double> q = {1, 2, -1, 1}, gates = {1, -2}, keys = {1, 1, 3, 0, -2, 1};
  PagedSequence pages(3, 16, 64, 0);
  const PageWrite write{0, 3, 0, pages.view()};
  write_keys(reference(), tensor::view(keys.data(), {3, 2}), c.format, {&write, 1});
  double scores[3];
  const IndexSequence s{0, 1, 2, pages.view()};
  index_score(reference(), tensor::view(q.data(), {1, 2, 2}), tensor::view(gates.data(), {1, 2}),
              c.format, {&s, 1}, tensor::view(scores, {1, 3}));
  EXPECT_EQ(scores[0], 0.5 * 3);       // dots 3 and 0
  EXPECT_EQ(scores[1], 0.5 * 3);       // dots 3 and -3
  EXPECT_EQ(scores[2], 0.5 * -2 * 3);  // dots 0 and 3
}

// The scale is that of the indexer, I^-1/2 J^-1/2, not the attention's: absolute values are
// checked, not the order.
TEST(IndexScore, AbsoluteValues) {
  const IndexCase c{KeyFormat::kBf16, 32, 128, 1, 1};
  const bf16 one = to_bf16(1.0f);
  const IndexInputs in{std::vector<bf16>(32 * 128, one), std::vector<bf16>(32, one),
                       std::vector<bf16>(128, one)};
  EXPECT_EQ(to_float(run(testing::cpu(), c, in)[0]), 64.0f);
  IndexCase fp8 = c;
  fp8.format = KeyFormat::kFp8;
  EXPECT_EQ(to_float(run(testing::cpu(), fp8, in)[0]), 64.0f);
  IndexCase mxfp4 = c;
  mxfp4.format = KeyFormat::kMxfp4;
  EXPECT_EQ(to_float(run(testing::cpu(), mxfp4, in)[0]), 64.0f);
}

TEST(IndexScore, CpuAgreesWithTheReferenceWithinRounding) {
  for (const IndexCase& c : testing::index_cases()) {
    const IndexInputs in = testing::index_inputs(c, 5);
    const std::vector<double> want = run_reference(c, in);
    const std::vector<bf16> got = run(testing::cpu(), c, in);
    const double scale = 1 / std::sqrt(static_cast<double>(c.heads * c.width));
    for (int64_t t = 0; t < c.rows; ++t) {
      for (int64_t p = 0; p <= c.tokens - c.rows + t; ++p) {
        // A format moves a value by at most a third of the largest in its group, which is below 3.5
        // here.
        double magnitude = 0;
        for (int64_t h = 0; h < c.heads; ++h) {
          double dot = 0;
          for (int64_t d = 0; d < c.width; ++d) {
            dot += (std::abs(widen(in.q[static_cast<size_t>((t * c.heads + h) * c.width + d)])) +
                    1.2) *
                   (std::abs(widen(in.keys[static_cast<size_t>(p * c.width + d)])) + 1.2);
          }
          magnitude +=
              std::abs(widen(in.gates[static_cast<size_t>(t * c.heads + h)])) * scale * dot;
        }
        const size_t i = static_cast<size_t>(t * c.tokens + p);
        const double slack =
            static_cast<double>(c.width + c.heads + 8) * testing::kRound32 * magnitude;
        ASSERT_LE(std::abs(widen(got[i]) - want[i]),
                  slack + testing::kRound16 * (std::abs(want[i]) + slack) + testing::kFlushed)
            << "format " << static_cast<int>(c.format) << ", row " << t << ", key " << p;
      }
    }
  }
}

TEST(IndexScore, SameBitsOnEveryInstructionSetThreadCountChunkAndPageOrder) {
  for (const IndexCase& c : testing::index_cases()) {
    const IndexInputs in = testing::index_inputs(c, 6);
    const std::vector<bf16> want = run(testing::cpu(Isa::kGeneric), c, in);
    for (int threads = 1; threads <= 3; ++threads) {
      for (const Context& context : contexts(threads)) {
        if (context.isa == Isa::kGeneric && threads != 2) continue;  // plain code is slow
        ASSERT_TRUE(testing::same_bits(run(context, c, in), want)) << name_of(context);
        if (context.isa == Isa::kGeneric) continue;
        for (const int64_t chunk : {1, 2, 7, 64}) {
          ASSERT_TRUE(testing::same_bits(run(context, c, in, {chunk, 64, 0}), want))
              << name_of(context) << ", chunk " << chunk;
        }
        for (const int64_t block_tokens : {64, 128, 1024}) {
          ASSERT_TRUE(testing::same_bits(run(context, c, in, {1 << 30, block_tokens, 99}), want))
              << name_of(context) << ", block " << block_tokens;
        }
      }
    }
  }
}

// Long contexts and many rows go through several ranges of keys and blocks of rows.
TEST(IndexScore, LongContextInOnePieceEqualsDecode) {
  const IndexCase c{KeyFormat::kFp8, 4, 32, 2700, 150};
  const IndexInputs in = testing::index_inputs(c, 7);
  const std::vector<bf16> want = run(testing::cpu(isas().back(), 1), c, in, {1, 64, 0});
  for (int threads = 1; threads <= 3; ++threads) {
    for (const Context& context : contexts(threads)) {
      if (context.isa == Isa::kGeneric) continue;
      for (const int64_t chunk : {17, 64, 150}) {
        ASSERT_TRUE(testing::same_bits(run(context, c, in, {chunk, 128, 5}), want)) << name_of(context);
      }
    }
  }
}

TEST(IndexScore, SequencesOfOneBatchDoNotMix) {
  const IndexCase a{KeyFormat::kFp8, 3, 40, 200, 4};
  const IndexCase b{KeyFormat::kFp8, 3, 40, 90, 1};
  const IndexInputs x = testing::index_inputs(a, 8);
  const IndexInputs y = testing::index_inputs(b, 9);
  const std::vector<bf16> want_a = run(testing::cpu(), a, x);
  const std::vector<bf16> want_b = run(testing::cpu(), b, y);
  PagedSequence pages_a(200, key_bytes(a.format, 40), 64, 1);
  PagedSequence pages_b(90, key_bytes(a.format, 40), 128, 2);
  const PageWrite write_a{0, 200, 0, pages_a.view()};
  const PageWrite write_b{0, 90, 0, pages_b.view()};
  write_keys(testing::cpu(), testing::view(x.keys, {200, 40}), a.format, {&write_a, 1});
  write_keys(testing::cpu(), testing::view(y.keys, {90, 40}), a.format, {&write_b, 1});
  // Row 0 belongs to b, rows 1 to 4 to a, row 5 to nobody.
  std::vector<bf16> q = y.q, gates = y.gates;
  q.insert(q.end(), x.q.begin(), x.q.end());
  q.resize(6 * 3 * 40);
  gates.insert(gates.end(), x.gates.begin(), x.gates.end());
  gates.resize(6 * 3);
  for (int threads = 1; threads <= 3; ++threads) {
    std::vector<bf16> scores(6 * 200, bf16{kUntouched});
    const std::vector<IndexSequence> sequences = {
        {1, 4, 196, pages_a.view()}, {0, 1, 89, pages_b.view()}, {5, 0, 7, pages_b.view()}};
    index_score(testing::cpu(isas().back(), threads), tensor::view(q.data(), {6, 3, 40}),
                tensor::view(gates.data(), {6, 3}), a.format, sequences,
                tensor::view(scores.data(), {6, 200}));
    EXPECT_EQ(std::memcmp(scores.data(), want_b.data(), 90 * 2), 0);
    for (int64_t t = 0; t < 4; ++t) {
      EXPECT_EQ(
          std::memcmp(&scores[static_cast<size_t>((t + 1) * 200)],
                      &want_a[static_cast<size_t>(t * 200)], static_cast<size_t>(2 * (197 + t))),
          0);
    }
    EXPECT_EQ(scores[1000].bits, kUntouched);
  }
}

TEST(IndexScore, NanAndInfinityStayWithTheirKeyAndRow) {
  const float inf = std::numeric_limits<float>::infinity();
  const IndexCase c{KeyFormat::kBf16, 6, 32, 70, 2};
  IndexInputs in = testing::index_inputs(c, 10);
  const std::vector<bf16> clean = run(testing::cpu(), c, in);
  in.keys[20 * 32 + 5] = to_bf16(std::numeric_limits<float>::quiet_NaN());
  in.keys[30 * 32] = to_bf16(inf);
  const std::vector<double> want = run_reference(c, in);
  const std::vector<bf16> plain = run(testing::cpu(Isa::kGeneric), c, in);
  for (const Context& context : contexts(1)) {
    const std::vector<bf16> got = run(context, c, in);
    EXPECT_TRUE(testing::same_bits(got, plain)) << name_of(context);
    for (int64_t p = 0; p < 69; ++p) {
      const size_t i = static_cast<size_t>(p);
      if (p == 20) {
        EXPECT_TRUE(std::isnan(to_float(got[i])));
        EXPECT_TRUE(std::isnan(want[i]));
      } else if (p == 30) {
        EXPECT_EQ(std::isnan(to_float(got[i])), std::isnan(want[i]));
        if (!std::isnan(want[i])) {
          EXPECT_EQ(to_float(got[i]), want[i]);
        }
      } else {
        EXPECT_EQ(got[i].bits, clean[i].bits) << p;
      }
    }
  }
}

TEST(IndexScore, NeedleHasTheHighestScoreJustAboveTheSelectionLimit) {
  for (const int64_t tokens : {2112, 2649}) {
    const IndexCase c{KeyFormat::kFp8, 4, 64, tokens, 1};
    IndexInputs in = testing::index_inputs(c, 11);
    for (bf16& gate : in.gates) gate = to_bf16(1.0f);
    // Every head asks for the same thing, and only one key answers.
    for (int64_t h = 1; h < 4; ++h) std::copy_n(in.q.begin(), 64, in.q.begin() + h * 64);
    for (int64_t d = 0; d < 64; ++d)
      in.keys[static_cast<size_t>(777 * 64 + d)] =
          to_bf16(2 * to_float(in.q[static_cast<size_t>(d)]));
    const std::vector<bf16> scores = run(testing::cpu(), c, in);
    for (int64_t p = 0; p < tokens; ++p) {
      if (p == 777) continue;
      ASSERT_LT(to_float(scores[static_cast<size_t>(p)]), to_float(scores[777]));
    }
  }
}

TEST(IndexScore, RowIdsBeyondFourGigabytes) {
  const int64_t row_bytes = 64 * 256;
  const int32_t rows[2] = {270000, 1};  // 270,000 * 16,384 bytes = 4.1 GiB
  const size_t size = static_cast<size_t>(row_bytes) * 270001;
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const IndexCase c{KeyFormat::kBf16, 2, 128, 80, 1};
  const IndexInputs in = testing::index_inputs(c, 12);
  const std::vector<bf16> want = run(testing::cpu(), c, in);
  const tensor::PageView pages{static_cast<std::byte*>(memory), row_bytes, rows, 64, 256};
  const PageWrite write{0, 80, 0, pages};
  write_keys(testing::cpu(), testing::view(in.keys, {80, 128}), c.format, {&write, 1});
  std::vector<bf16> scores(80);
  const IndexSequence s{0, 1, 79, pages};
  index_score(testing::cpu(), testing::view(in.q, {1, 2, 128}), testing::view(in.gates, {1, 2}),
              c.format, {&s, 1}, tensor::view(scores.data(), {1, 80}));
  EXPECT_TRUE(testing::same_bits(scores, want));
  munmap(memory, size);
}

TEST(IndexScore, RepeatsGiveTheSameBitsAndNoRowsAreNoWork) {
  const IndexCase c{KeyFormat::kMxfp4, 8, 64, 500, 20};
  const IndexInputs in = testing::index_inputs(c, 13);
  const std::vector<bf16> want = run(testing::cpu(isas().back(), 3), c, in);
  for (int repeat = 0; repeat < 3; ++repeat) {
    EXPECT_TRUE(testing::same_bits(run(testing::cpu(isas().back(), 3), c, in), want));
  }
  const IndexCase none{KeyFormat::kMxfp4, 8, 64, 10, 0};
  EXPECT_TRUE(run(testing::cpu(), none, testing::index_inputs(none, 14)).empty());
}

}  // namespace
}  // namespace perigee::ops
