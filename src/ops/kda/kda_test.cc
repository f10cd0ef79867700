#include "ops/kda/kda.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "ops/kda/kda_problem.h"

namespace perigee::ops {
namespace {

TEST(KdaReference, HandNumbers) {
  // One head, K = 2, V = 1, softplus decay with rate 1. Keys and queries of length 3 make the 1e-6
  // visible.
  const double n = 3 / std::sqrt(9 + 1e-6);
  const double half_root = 1 / std::sqrt(2.0);
  const std::vector<double> q = {3, 0, 0, 3};
  const std::vector<double> k = {3, 0, 0, 3};
  const std::vector<double> v = {2, 5};
  const double ln3 = std::log(3.0);
  const std::vector<double> z = {0, 0, std::log(2.0),
                                 ln3};     // alpha = 1 / (1 + e^z) = 1/2, 1/2; 1/3, 1/4
  const std::vector<double> b = {0, ln3};  // beta = 1/2, 3/4
  const std::vector<float> a_log = {0};
  const std::vector<float> dt_bias = {0, 0};
  std::vector<double> state = {4, 8};
  const KdaParams params = {1, 2, 1, std::nullopt};
  std::vector<std::byte> open(
      static_cast<size_t>(kda_open_bytes(tensor::Device::kReference, params)));
  std::vector<double> out(2);
  const KdaSequence s = {0, 2, 0, state.data(), open.data()};
  kda(testing::reference(), testing::view(q, {2, 1, 2}), testing::view(k, {2, 1, 2}),
      testing::view(v, {2, 1, 1}), testing::view(z, {2, 1, 2}), testing::view(b, {2, 1}),
      testing::view(a_log, {1}), testing::view(dt_bias, {2}), params, {&s, 1},
      testing::view(out, {2, 1, 1}));
  const double s0 =
      2 + 0.5 * n * (2 - 2 * n);  // decayed to (2, 4), then the delta along the first axis
  EXPECT_NEAR(out[0], s0 * n * half_root, 1e-14);
  const double s1 = 1 + 0.75 * n * (5 - 1 * n);  // (s0 / 3, 4 / 4), then the delta along the second
  EXPECT_NEAR(out[1], s1 * n * half_root, 1e-14);
  EXPECT_EQ(state, (std::vector<double>{4, 8})) << "an open chunk leaves the stored state alone";
}

TEST(KdaReference, BoundedDecay) {
  // alpha = exp(-5 sigmoid(e^a z)); v equal to what the state already gives leaves only the decay.
  const std::vector<double> q = {1};
  const std::vector<double> z = {0.5};
  const std::vector<double> b = {-800};  // beta = 0
  const std::vector<float> a_log = {0.25f};
  const std::vector<float> dt_bias = {0.125f};
  std::vector<double> state = {3};
  const KdaParams params = {1, 1, 1, -5.0};
  std::vector<std::byte> open(
      static_cast<size_t>(kda_open_bytes(tensor::Device::kReference, params)));
  std::vector<double> out(1);
  const KdaSequence s = {0, 1, 0, state.data(), open.data()};
  kda(testing::reference(), testing::view(q, {1, 1, 1}), testing::view(q, {1, 1, 1}),
      testing::view(q, {1, 1, 1}), testing::view(z, {1, 1, 1}), testing::view(b, {1, 1}),
      testing::view(a_log, {1}), testing::view(dt_bias, {1}), params, {&s, 1},
      testing::view(out, {1, 1, 1}));
  const double alpha = std::exp(-5 / (1 + std::exp(-std::exp(0.25) * 0.625)));
  EXPECT_NEAR(out[0], 3 * alpha / std::sqrt(1 + 1e-6), 1e-14);
}

TEST(Kda, EveryCutGivesTheSameBits) {
  const int64_t rows = 67;
  for (const KdaCase& shape : kKdaCases) {
    for (const KdaDecay decay : {KdaDecay::kDrawn, KdaDecay::kUnbounded}) {
      if (shape.key_dim > 64 && decay == KdaDecay::kUnbounded)
        continue;  // plain code is slow, and small ones do
      const KdaProblem p = make_kda_problem(shape, decay, rows, 100);
      const KdaOutcome<float> whole = kda_run(testing::cpu(Isa::kGeneric), p, {rows});
      for (const Isa isa : testing::isas()) {
        for (const int64_t size : {1, 7, 16, 17, 64, 67}) {
          if (isa == Isa::kGeneric && size != 7) continue;
          EXPECT_TRUE(kda_run(testing::cpu(isa, 2), p, equal_calls(rows, size)) == whole)
              << testing::isa_name(isa) << ", calls of " << size << " rows, K " << shape.key_dim;
        }
      }
      const KdaOutcome<double> reference = kda_run_reference(p, {rows});
      EXPECT_TRUE(kda_run_reference(p, equal_calls(rows, 7)) == reference);
    }
  }
}

TEST(Kda, RandomCutsGiveTheSameBits) {
  const bool holds = rc::check("any cut, any shape, any threads", [&] {
    const uint64_t seed = *rc::gen::arbitrary<uint64_t>();
    const auto draw = [&](uint64_t i, int64_t n) {
      return 1 + static_cast<int64_t>(random_bits(seed, i) % static_cast<uint64_t>(n));
    };
    const KdaCase shape = {draw(0, 2), draw(1, 36), draw(2, 36)};
    const int64_t rows = draw(3, 40);
    const KdaDecay decay = kKdaDecays[random_bits(seed, 4) % std::size(kKdaDecays)];
    const KdaProblem p = make_kda_problem(shape, decay, rows, seed);
    const KdaOutcome<float> whole = kda_run(testing::cpu(), p, {rows});
    const std::vector<int64_t> calls = drawn_calls(rows, draw(5, 20), seed + 1);
    for (const Isa isa : testing::isas()) {
      RC_ASSERT(kda_run(testing::cpu(isa, static_cast<int>(draw(6, 3))), p, calls) == whole);
    }
  });
  EXPECT_TRUE(holds);
}

// Rows dropped after a call, as after rejected drafts: the same bits as if they had never been
// there.
TEST(Kda, DroppedRowsLeaveNoTrace) {
  for (const KdaCase& shape : {KdaCase{2, 20, 24}, KdaCase{1, 128, 128}}) {
    const KdaProblem p = make_kda_problem(shape, KdaDecay::kDrawn, 40, 200);
    const KdaProblem drafts = make_kda_problem(shape, KdaDecay::kDrawn, 40, 300);
    const Context context = testing::cpu();
    const KdaOutcome<float> whole = kda_run(context, p, {40});
    const KdaOutcome<double> whole_reference = kda_run_reference(p, {40});
    for (int64_t keep = 16; keep < 31; ++keep) {
      for (int64_t dropped = 1; keep + dropped < 32; dropped += 3) {
        KdaOutcome<float> o = kda_run(context, p, {keep});
        KdaOutcome<float> spoilt = o;
        kda_feed(context, drafts, drafts.half, keep, dropped, spoilt);
        EXPECT_TRUE(testing::same_bits(o.state, spoilt.state));
        o.open = spoilt.open;
        kda_feed(context, p, p.half, keep, 40 - keep, o);
        EXPECT_TRUE(o == whole) << keep << " rows kept, " << dropped << " dropped";
      }
    }
    KdaOutcome<double> o = kda_run_reference(p, {19});
    KdaOutcome<double> spoilt = o;
    kda_feed(testing::reference(), drafts, drafts.wide, 19, 9, spoilt);
    o.open = spoilt.open;
    kda_feed(testing::reference(), p, p.wide, 19, 21, o);
    EXPECT_TRUE(o == whole_reference);
  }
}

// One call with several sequences at different positions, in different orders and places, some
// without rows.
TEST(Kda, SequencesAreIndependent) {
  const KdaCase shape = {3, 20, 24};
  const int64_t heads = shape.heads;
  const std::vector<int64_t> before = {0, 5,  16, 31,
                                       0, 47, 12};  // rows each sequence has already had
  const std::vector<int64_t> fresh = {20, 1, 1, 1, 0, 33, 7};
  std::vector<KdaProblem> problems;
  std::vector<KdaOutcome<float>> starts;
  std::vector<KdaOutcome<float>> wants;
  for (size_t i = 0; i < before.size(); ++i) {
    problems.push_back(make_kda_problem(shape, KdaDecay::kDrawn, before[i] + fresh[i], 400));
    problems.back().half =
        make_kda_problem(shape, KdaDecay::kDrawn, before[i] + fresh[i], 500 + i * 10).half;
    starts.push_back(kda_run(testing::cpu(), problems.back(), {before[i]}));
    starts.back().out.clear();
    wants.push_back(starts.back());
    kda_feed(testing::cpu(), problems.back(), problems.back().half, before[i], fresh[i],
             wants.back());
  }
  for (int64_t round = 0; round < 6; ++round) {
    std::vector<size_t> order;
    for (size_t i = 0; i < before.size(); ++i) {
      order.push_back((i * 3 + static_cast<size_t>(round)) % before.size());
    }
    KdaData<bf16> all;
    int64_t row = round;  // leading rows of nobody
    const auto append = [](std::vector<bf16>& to, const std::vector<bf16>& from, int64_t size,
                           int64_t begin) {
      to.insert(to.end(), from.begin() + begin * size, from.end());
    };
    const int64_t keys = heads * shape.key_dim;
    const int64_t values = heads * shape.value_dim;
    for (auto* v : {&all.q, &all.k, &all.z}) v->resize(static_cast<size_t>(row * keys));
    all.v.resize(static_cast<size_t>(row * values));
    all.b.resize(static_cast<size_t>(row * heads));
    std::vector<KdaOutcome<float>> got = starts;
    std::vector<KdaSequence> sequences;
    for (const size_t i : order) {
      const KdaData<bf16>& d = problems[i].half;
      append(all.q, d.q, keys, before[i]);
      append(all.k, d.k, keys, before[i]);
      append(all.z, d.z, keys, before[i]);
      append(all.v, d.v, values, before[i]);
      append(all.b, d.b, heads, before[i]);
      sequences.push_back({row, fresh[i], before[i], got[i].state.data(), got[i].open.data()});
      row += fresh[i];
    }
    std::vector<float> out(static_cast<size_t>(row * values), 7.0f);
    const KdaProblem& p = problems[0];
    const Isa isa = testing::isas()[static_cast<size_t>(round) % testing::isas().size()];
    kda(testing::cpu(isa, 1 + static_cast<int>(round % 3)),
        testing::view(all.q, {row, heads, shape.key_dim}),
        testing::view(all.k, {row, heads, shape.key_dim}),
        testing::view(all.v, {row, heads, shape.value_dim}),
        testing::view(all.z, {row, heads, shape.key_dim}), testing::view(all.b, {row, heads}),
        testing::view(p.a_log, {heads + 2}), testing::view(p.dt_bias, {keys}), p.params, sequences,
        testing::view(out, {row, heads, shape.value_dim}));
    for (int64_t i = 0; i < round * values; ++i) EXPECT_EQ(out[static_cast<size_t>(i)], 7.0f);
    for (size_t j = 0; j < order.size(); ++j) {
      const size_t i = order[j];
      const auto begin = out.begin() + sequences[j].row_begin * values;
      got[i].out.assign(begin, begin + fresh[i] * values);
      EXPECT_TRUE(got[i] == wants[i]) << "sequence " << i << " in round " << round;
    }
  }
}

TEST(Kda, AbortsOnForeignShapes) {
  KdaProblem p = make_kda_problem({2, 4, 4}, KdaDecay::kDrawn, 3, 1);
  EXPECT_DEATH(kda_run(testing::cpu(),
                       [&] {
                         KdaProblem bad = p;
                         bad.a_log.resize(1);
                         return bad;
                       }(),
                       {3}),
               "CHECK failed");
  p.params.lower_bound = 1.0;
  EXPECT_DEATH(kda_run(testing::cpu(), p, {3}), "CHECK failed");
}

}  // namespace
}  // namespace perigee::ops
