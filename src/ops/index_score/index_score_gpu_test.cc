// Index scores and selection on the GPU: one set of bits in any batch and from any place of the pages, near the
// reference; selections equal to the host's.
#include <cstring>

#include "num/record_codec.h"
#include "ops/index_score/index_score.h"
#include "ops/op_test.h"
#include "ops/page_io/page_io.h"
#include "ops/page_io/page_io_cases.h"
#include "ops/topk/topk.h"

namespace perigee::ops {
namespace {

using testing::PagedSequence;

struct Case {
  KeyFormat format;
  int64_t heads, j, tokens, rows;
};

struct Inputs {
  std::vector<bf16> q, gates, keys;
};

PagedSequence pages_of(const Case& c, Inputs& in, uint64_t order) {
  PagedSequence pages(c.tokens, key_bytes(c.format, c.j), 128, order);
  const testing::StepParts parts(testing::cpu(), {{0, c.tokens, 0, pages.blocks(), {}, 0}}, c.tokens);
  write_keys(testing::cpu(), testing::view(in.keys, {c.tokens, c.j}), c.format, parts(), pages.place());
  return pages;
}

// The last `rows` rows, in steps of `step` rows whose scores are made `block` rows at a time.
std::vector<bf16> score(const Context& context, const Case& c, Inputs& in, int64_t step, int64_t block,
                        uint64_t order) {
  PagedSequence pages = pages_of(c, in, order);
  testing::BytesOnDevice pool(context, pages.pool());
  std::vector<bf16> out(static_cast<size_t>(c.rows * c.tokens), bf16{0x7f00});
  for (int64_t done = 0; done < c.rows; done += step) {
    const int64_t n = std::min(step, c.rows - done);
    const int64_t position = c.tokens - c.rows + done;
    const testing::StepParts parts(context, {{0, n, position, pages.blocks(), {}, 0}}, n);
    testing::OnDevice on(context);
    const Tensor q = on(tensor::view(in.q.data() + done * c.heads * c.j, {n, c.heads, c.j}));
    const Tensor gates = on(tensor::view(in.gates.data() + done * c.heads, {n, c.heads}));
    const Tensor scores = on(tensor::view(out.data() + done * c.tokens, {n, c.tokens}));
    for (int64_t first = 0; first < n; first += block) {
      index_score(context, q, gates, c.format, parts(), pages.place(pool.data()), first, 0,
                  scores.slice(first, std::min(block, n - first)));
    }
  }
  return out;
}

TEST(IndexScoreGpu, BatchesAndPagesKeepTheBitsNearTheReference) {
  const Context* const gpu = testing::gpu();
  if (gpu == nullptr) GTEST_SKIP() << "no GPU";
  for (const KeyFormat f : {KeyFormat::kBf16, KeyFormat::kFp8, KeyFormat::kMxfp4}) {
    for (const Case& c :
         {Case{f, 32, 128, 500, 9}, Case{f, 3, 32, 150, 20}, Case{f, 1, 64, 65, 65}, Case{f, 64, 96, 200, 3},
          Case{f, 4, 128, 300, 70}, Case{f, 16, 128, 130, 33}, Case{f, 12, 40, 100, 9}, Case{f, 96, 128, 200, 2},
          Case{f, 7, 7, 90, 11}}) {
      if (key_bytes(f, c.j) == 0) continue;  // MXFP4 has groups of 32
      Inputs in = {testing::random_half(1, c.rows * c.heads * c.j, 1.0), testing::random_half(2, c.rows * c.heads, 1.0),
                   testing::random_half(3, c.tokens * c.j, 1.0)};
      const std::vector<bf16> whole = score(*gpu, c, in, c.rows, c.rows, 0);
      ASSERT_TRUE(testing::same_bits(score(*gpu, c, in, 1, 1, 7), whole))
          << c.heads << " heads, format " << static_cast<int>(f);
      ASSERT_TRUE(testing::same_bits(score(*gpu, c, in, 7, 2, 8), whole));
      PagedSequence pages = pages_of(c, in, 0);
      const testing::StepParts parts(testing::reference(), {{0, c.rows, c.tokens - c.rows, pages.blocks(), {}, 0}},
                                     c.rows);
      std::vector<double> q = testing::widen(in.q), gates = testing::widen(in.gates), want(whole.size(), 0.0);
      index_score(testing::reference(), tensor::view(q.data(), {c.rows, c.heads, c.j}),
                  tensor::view(gates.data(), {c.rows, c.heads}), f, parts(), pages.place(), 0, 0,
                  tensor::view(want.data(), {c.rows, c.tokens}));
      double difference = 0, norm = 0;
      for (int64_t t = 0; t < c.rows; ++t) {
        for (int64_t p = 0; p < c.tokens; ++p) {
          const size_t i = static_cast<size_t>(t * c.tokens + p);
          if (p > c.tokens - c.rows + t) {
            ASSERT_EQ(whole[i].bits, 0x7f00) << "beyond the row";
            continue;
          }
          const double d = testing::widen(whole[i]) - want[i];
          difference += d * d;
          norm += want[i] * want[i];
        }
      }
      // One rounding to BF16 (1.65e-3 of random numbers), and the sums of the matrix instruction.
      EXPECT_LE(std::sqrt(difference / norm), 2.0e-3) << c.heads << " heads, format " << static_cast<int>(f);
    }
  }
}

// Rows of several parts in one step, rows of none between them, and rows that see too little to be scored.
TEST(IndexScoreGpu, PartsOfAStepDoNotMix) {
  const Context* const gpu = testing::gpu();
  if (gpu == nullptr) GTEST_SKIP() << "no GPU";
  constexpr int64_t kWidth = 700, kRows = 48, kSkip = 65;
  struct Place {
    int64_t row, rows, position;
  };
  const Place places[] = {{0, 5, 300}, {7, 20, 60}, {27, 1, 699}, {28, 1, 10}, {29, 16, 150}};
  for (const KeyFormat f : {KeyFormat::kBf16, KeyFormat::kFp8, KeyFormat::kMxfp4}) {
    for (const int64_t heads : {4, 16, 32}) {
      const Case c = {f, heads, 128, kWidth, kRows};
      Inputs in = {testing::random_half(1, kRows * heads * c.j, 1.0), testing::random_half(2, kRows * heads, 1.0),
                   testing::random_half(3, kWidth * c.j, 1.0)};
      PagedSequence pages = pages_of(c, in, 5);
      testing::BytesOnDevice pool(*gpu, pages.pool());
      std::vector<testing::TestPart> all;
      for (const Place& p : places) all.push_back({p.row, p.rows, p.position, pages.blocks(), {}, 0});
      std::vector<bf16> together(static_cast<size_t>(kRows * kWidth), bf16{0x7f00}), alone = together;
      {
        const testing::StepParts parts(*gpu, all, kRows);
        testing::OnDevice on(*gpu);
        const Tensor q = on(testing::view(in.q, {kRows, heads, c.j})), gates = on(testing::view(in.gates, {kRows, heads}));
        const Tensor scores = on(testing::view(together, {kRows, kWidth}));
        index_score(*gpu, q, gates, f, parts(), pages.place(pool.data()), 0, kSkip, scores.slice(0, 30));
        index_score(*gpu, q, gates, f, parts(), pages.place(pool.data()), 30, kSkip, scores.slice(30, kRows - 30));
      }
      for (const Place& p : places) {
        for (int64_t i = 0; i < p.rows; ++i) {
          if (p.position + i + 1 <= kSkip) continue;
          const int64_t r = p.row + i;
          const testing::StepParts parts(*gpu, {{0, 1, p.position + i, pages.blocks(), {}, 0}}, 1);
          testing::OnDevice on(*gpu);
          index_score(*gpu, on(tensor::view(in.q.data() + r * heads * c.j, {1, heads, c.j})),
                      on(tensor::view(in.gates.data() + r * heads, {1, heads})), f, parts(), pages.place(pool.data()), 0, 0,
                      on(tensor::view(alone.data() + r * kWidth, {1, kWidth})));
        }
      }
      EXPECT_TRUE(testing::same_bits(together, alone)) << heads << " heads, format " << static_cast<int>(f);
    }
  }
}

TEST(TopkGpu, SelectsWhatTheHostSelects) {
  const Context* const gpu = testing::gpu();
  if (gpu == nullptr) GTEST_SKIP() << "no GPU";
  struct Row {
    int64_t length, values;  // few values tie often
  };
  constexpr int32_t kBlock = 256;
  for (const int64_t k : {int64_t{1}, int64_t{24}, int64_t{2048}}) {
    std::vector<Row> rows = {{1, 100},  {24, 3},        {25, 3},    {2048, 5}, {2049, 70000},
                             {5000, 4}, {70000, 70000}, {70000, 2}, {4096, 1},
                             {1048576, 70000}, {1048575, 3}};
    const auto n = static_cast<int64_t>(rows.size());
    const int64_t width = 1048576;
    std::vector<bf16> scores(static_cast<size_t>(n * width), bf16{0x7f00});
    std::vector<testing::TestPart> parts;
    std::vector<int32_t> blocks;
    for (int64_t b = 0; b < width / kBlock; ++b) blocks.push_back(static_cast<int32_t>(width / kBlock - b + 5));
    for (int64_t t = 0; t < n; ++t) {
      parts.push_back({t, 1, rows[static_cast<size_t>(t)].length - 1, blocks, {}, 0});
      for (int64_t i = 0; i < rows[static_cast<size_t>(t)].length; ++i) {
        const uint64_t r = random_bits(static_cast<uint64_t>(t + 9), static_cast<uint64_t>(i)) %
                           static_cast<uint64_t>(rows[static_cast<size_t>(t)].values);
        scores[static_cast<size_t>(t * width + i)].bits =
            static_cast<uint16_t>(r * 2654435761u >> 4);  // NaN, infinities and both zeros among them
      }
    }
    std::vector<int32_t> lists[2], counts[2], places[2];
    const tensor::PagePlace pages = {nullptr, 0, kBlock, 0};
    for (int device = 0; device < 2; ++device) {
      const Context context = device == 0 ? testing::cpu() : *gpu;
      lists[device].assign(static_cast<size_t>(n * k), -7);
      places[device].assign(static_cast<size_t>(n * k), -7);
      counts[device].assign(static_cast<size_t>(n), -7);
      const testing::StepParts step(context, parts, n);
      testing::OnDevice on(context);
      const Tensor s = on(testing::view(scores, {n, width}));
      const Tensor out = on(testing::view(lists[device], {n, k}));
      const Tensor count = on(testing::view(counts[device], {n}));
      const Tensor where = on(testing::view(places[device], {n, k}));
      topk(context, s.slice(0, 4), step(), 0, k, pages, out, count, device == 0 ? Tensor() : where);
      topk(context, s.slice(4, n - 4), step(), 4, k, pages, out, count, device == 0 ? Tensor() : where);
    }
    EXPECT_EQ(counts[0], counts[1]);
    EXPECT_EQ(lists[0], lists[1]) << "k " << k;
    for (size_t i = 0; i < lists[0].size(); ++i) {
      const int32_t p = lists[0][i];
      ASSERT_EQ(places[1][i], p < 0 ? p : blocks[static_cast<size_t>(p / kBlock)] * kBlock + p % kBlock) << "k " << k;
    }
  }
}

}  // namespace
}  // namespace perigee::ops
