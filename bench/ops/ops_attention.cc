#include <cstring>

#include "base/rng.h"
#include "bench/ops/bench_case.h"
#include "num/records.h"
#include "ops/index_score/index_score.h"
#include "ops/index_score/index_score_bench_cases.h"
#include "ops/mla/mla.h"
#include "ops/mla/mla_bench_cases.h"
#include "ops/page_io/page_io.h"
#include "ops/page_io/page_io_cases.h"
#include "ops/topk/topk.h"
#include "ops/topk/topk_cases.h"

namespace perigee::bench {
namespace {

using tensor::DType;
using tensor::kPageTokens;

constexpr int64_t kC = ops::kMlaBenchLatent;
constexpr int64_t kR = ops::kMlaBenchRope;
constexpr int64_t kJ = ops::kIndexBenchWidth;
constexpr LatentFormat kLatents[] = {LatentFormat::kBf16, LatentFormat::kFp8, LatentFormat::kNvfp4};
constexpr KeyFormat kKeys[] = {KeyFormat::kBf16, KeyFormat::kFp8, KeyFormat::kMxfp4};

const char* name_of(LatentFormat format) {
  return format == LatentFormat::kBf16 ? "bf16" : format == LatentFormat::kFp8 ? "fp8" : "nvfp4";
}
const char* name_of(KeyFormat format) {
  return format == KeyFormat::kBf16 ? "bf16" : format == KeyFormat::kFp8 ? "fp8" : "mxfp4";
}

int64_t blocks_of(int64_t tokens) { return (tokens + kPageTokens - 1) / kPageTokens; }

std::vector<int32_t> consecutive(int64_t begin, int64_t count) {
  std::vector<int32_t> out;
  for (int64_t i = 0; i < count; ++i) out.push_back(static_cast<int32_t>(begin + i));
  return out;
}

// `sequences` sequences, block after block, `rows` new rows of each at `position`.
std::vector<PartPlan> plans_of(int64_t sequences, int64_t rows, int64_t position) {
  const int64_t blocks = blocks_of(position + rows);
  std::vector<PartPlan> out;
  for (int64_t s = 0; s < sequences; ++s) out.push_back({s * rows, rows, position, consecutive(s * blocks, blocks), {}, 0});
  return out;
}

// The records of these sequences in the layers of a model; a run takes the next layer.
struct Pages {
  Copies layers;
  int64_t token_bytes = 0;
  tensor::PagePlace next() { return {layers.next(), kPageTokens * token_bytes, kPageTokens, token_bytes}; }
};

// Every sequence has the records that `write(pages)` gives to one.
template <class Write>
Pages fill_pages(Operands& on, int64_t sequences, int64_t tokens, int64_t token_bytes, Write&& write) {
  const int64_t blocks = blocks_of(tokens);
  const auto one = static_cast<size_t>(blocks * kPageTokens * token_bytes);
  std::vector<std::byte> pool(one * static_cast<size_t>(sequences));
  const std::vector<int32_t> rows = consecutive(0, blocks);
  write(ops::PageWrite{0, tokens, 0, {pool.data(), kPageTokens * token_bytes, rows.data(), kPageTokens, token_bytes}});
  for (size_t s = 1; s < static_cast<size_t>(sequences); ++s) std::memcpy(pool.data() + s * one, pool.data(), one);
  return {on.copies(pool), token_bytes};
}

// Ascending positions, one of every two, drawn for each row.
ops::Selection select(Operands& on, int64_t rows, int64_t count) {
  std::vector<int32_t> positions;
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t i = 0; i < count; ++i) {
      const uint64_t odd = random_bits(5, static_cast<uint64_t>(t * count + i)) % 2;
      positions.push_back(static_cast<int32_t>(2 * i + static_cast<int64_t>(odd)));
    }
  }
  const std::vector<int32_t> counts(static_cast<size_t>(rows), static_cast<int32_t>(count));
  return {on.put(positions, {rows, count}), on.put(counts, {rows})};
}

BenchCase mla_case(LatentFormat format, const ops::MlaBenchCase& m) {
  const int64_t rows = m.sequences * m.rows;
  const int64_t slots = m.selected ? ops::kMlaBenchSelected - m.rows : m.tokens - m.rows / 2;
  const int64_t record = latent_bytes(format, kC, kR);
  BenchCase c;
  c.op = "mla";
  c.name = fmt::format("{} H={} B={} T={} {}", name_of(format), m.heads, m.sequences, m.rows,
                       m.selected ? fmt::format("selected {}", slots) : fmt::format("dense {}", m.tokens));
  c.bytes = static_cast<double>((m.selected ? rows : m.sequences) * slots * record + rows * m.heads * (2 * (2 * kC + kR) + 4));
  c.flops = 2.0 * static_cast<double>(rows * slots * m.heads * (2 * kC + kR));
  c.prepare = [=](Operands& on) -> Prepared {
    const auto write = [&](const ops::PageWrite& one) {
      std::vector<bf16> latent = random_halves(1, m.tokens * kC, 1.5f);
      std::vector<bf16> rope = random_halves(2, m.tokens * kR, 1.5f);
      ops::write_latents(on.host(), tensor::view(latent.data(), {m.tokens, kC}), tensor::view(rope.data(), {m.tokens, kR}),
                         format, {&one, 1});
    };
    const Pages pages = fill_pages(on, m.sequences, m.tokens, record, write);
    const tensor::Parts parts = on.parts(plans_of(m.sequences, m.rows, m.tokens - m.rows), rows);
    const Tensor q = on.halves(3, {rows, m.heads, kC + kR}, 1.5f);
    const Tensor out = on.make(DType::kBF16, {rows, m.heads, kC});
    const Tensor lse = on.make(DType::kF32, {rows, m.heads});
    const auto dims = ops::mla_workspace(on.context().device, rows, m.heads, kC, slots, int64_t{1} << 28);
    const Tensor workspace = dims[0] > 0 ? on.make(DType::kF32, {dims[0], dims[1], dims[2], dims[3]}) : Tensor();
    const ops::Selection selection = m.selected ? select(on, rows, slots) : ops::Selection();
    const auto run = [=, &context = on.context(), layers = pages]() mutable {
      ops::mla(context, q, format, kC, 0.07, parts, layers.next(), m.selected ? &selection : nullptr, workspace, out, lse);
    };
    return {run, {out, lse}};
  };
  return c;
}

Pages key_pages(Operands& on, KeyFormat format, int64_t sequences, int64_t tokens) {
  return fill_pages(on, sequences, tokens, key_bytes(format, kJ), [&](const ops::PageWrite& one) {
    std::vector<bf16> keys = random_halves(1, tokens * kJ, 1.5f);
    ops::write_keys(on.host(), tensor::view(keys.data(), {tokens, kJ}), format, {&one, 1});
  });
}

BenchCase index_case(KeyFormat format, const ops::IndexBenchCase& i) {
  const int64_t rows = i.sequences * i.rows;
  BenchCase c;
  c.op = "index_score";
  c.name = fmt::format("{} I={} B={} T={} S={}", name_of(format), i.heads, i.sequences, i.rows, i.tokens);
  c.bytes = static_cast<double>(i.sequences * i.tokens * key_bytes(format, kJ) + 2 * rows * (i.tokens + i.heads * (kJ + 1)));
  c.flops = 2.0 * static_cast<double>(rows * (i.tokens - i.rows / 2) * i.heads * kJ);
  c.prepare = [=](Operands& on) -> Prepared {
    const tensor::Parts parts = on.parts(plans_of(i.sequences, i.rows, i.tokens - i.rows), rows);
    const Tensor q = on.halves(2, {rows, i.heads, kJ}, 1.5f);
    const Tensor gates = on.halves(3, {rows, i.heads}, 1.5f);
    const Tensor scores = on.make(DType::kBF16, {rows, i.tokens});
    const auto run = [=, &context = on.context(), pages = key_pages(on, format, i.sequences, i.tokens)]() mutable {
      ops::index_score(context, q, gates, format, parts, pages.next(), 0, 0, scores);
    };
    return {run, {scores}};
  };
  return c;
}

BenchCase topk_case(const ops::TopkBenchCase& k) {
  BenchCase c;
  c.op = "topk";
  c.name = fmt::format("k={} B={} S={}", ops::kTopkBenchK, k.rows, k.tokens);
  c.bytes = static_cast<double>(k.rows * (2 * k.tokens + 4 * ops::kTopkBenchK));
  c.prepare = [=](Operands& on) -> Prepared {
    std::vector<PartPlan> plans;
    for (int64_t t = 0; t < k.rows; ++t) plans.push_back({t, 1, k.tokens - 1, {}, {}, 0});
    const tensor::Parts parts = on.parts(std::move(plans), k.rows);
    const Tensor scores = on.halves(1, {k.rows, k.tokens}, 1.5f);
    const Tensor out = on.make(DType::kI32, {k.rows, ops::kTopkBenchK});
    const Tensor counts = on.make(DType::kI32, {k.rows});
    const auto run = [=, &context = on.context()] {
      ops::topk(context, scores, parts, 0, ops::kTopkBenchK, {}, out, counts, {});
    };
    return {run, {out, counts}};
  };
  return c;
}

// New records of every sequence, inside a page for single rows.
template <class Write>
BenchCase write_case(const std::string& name, const ops::testing::PageBenchCase& p, int64_t columns, int64_t record,
                     Write write) {
  const int64_t rows = p.sequences * p.rows;
  BenchCase c;
  c.op = "page_io";
  c.name = fmt::format("{} B={} T={}", name, p.sequences, p.rows);
  c.bytes = static_cast<double>(rows * (2 * columns + record));
  c.prepare = [=](Operands& on) -> Prepared {
    const int64_t position = p.rows == 1 ? 37 : 0;
    const Pages pages = fill_pages(on, p.sequences, position + p.rows, record, [](const ops::PageWrite&) {});
    const tensor::Parts parts = on.parts(plans_of(p.sequences, p.rows, position), rows);
    const Tensor values = on.halves(1, {rows, columns}, 1.5f);
    const int64_t pool = p.sequences * blocks_of(position + p.rows) * kPageTokens * record;
    const Tensor first = tensor::view(reinterpret_cast<uint8_t*>(pages.layers.at(0)), {pool});
    const auto run = [=, &context = on.context(), layers = pages]() mutable { write(context, values, parts, layers.next()); };
    return {run, {first}};
  };
  return c;
}

void add_writes(std::vector<BenchCase>& cases) {
  using tensor::PagePlace;
  using tensor::Parts;
  for (const ops::testing::PageBenchCase& p : ops::testing::kPageBenchCases) {
    for (const LatentFormat f : kLatents) {
      const auto write = [f](const ops::Context& context, const Tensor& values, const Parts& parts, const PagePlace& pages) {
        ops::write_latents(context, values.columns(0, kC), values.columns(kC, kR), f, parts, pages);
      };
      cases.push_back(write_case(fmt::format("latents {}", name_of(f)), p, kC + kR, latent_bytes(f, kC, kR), write));
    }
    for (const KeyFormat f : kKeys) {
      const auto write = [f](const ops::Context& context, const Tensor& values, const Parts& parts, const PagePlace& pages) {
        ops::write_keys(context, values, f, parts, pages);
      };
      cases.push_back(write_case(fmt::format("keys {}", name_of(f)), p, kJ, key_bytes(f, kJ), write));
    }
  }
}

}  // namespace

std::vector<BenchCase> attention_bench(tensor::Device) {
  std::vector<BenchCase> cases;
  for (const LatentFormat format : kLatents) {
    for (const ops::MlaBenchCase& m : ops::kMlaBenchCases) cases.push_back(mla_case(format, m));
  }
  for (const KeyFormat format : kKeys) {
    for (const ops::IndexBenchCase& i : ops::kIndexBenchCases) cases.push_back(index_case(format, i));
  }
  for (const ops::TopkBenchCase& k : ops::kTopkBenchCases) cases.push_back(topk_case(k));
  add_writes(cases);
  return cases;
}

}  // namespace perigee::bench
