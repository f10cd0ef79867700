#include <memory>
#include <numeric>

#include "base/rng.h"
#include "bench/cpu/bench_case.h"
#include "num/records.h"
#include "ops/index_score/index_score.h"
#include "ops/mla/mla.h"
#include "ops/page_io/page_io.h"
#include "ops/topk/topk.h"

namespace perigee::bench {
namespace {

std::vector<bf16> random_values(uint64_t seed, int64_t n) {
  std::vector<bf16> out(static_cast<size_t>(n));
  for (size_t i = 0; i < out.size(); ++i) out[i] = to_bf16(3 * random_uniform(seed, i) - 1.5f);
  return out;
}

// A sequence in a pool, block after block.
struct Pages {
  Pages(int64_t tokens, int64_t token_bytes)
      : pool(static_cast<size_t>((tokens + 63) / 64 * 64 * token_bytes)),
        rows(static_cast<size_t>((tokens + 63) / 64)) {
    std::iota(rows.begin(), rows.end(), 0);
    view = {pool.data(), 64 * token_bytes, rows.data(), 64, token_bytes};
  }
  std::vector<std::byte> pool;
  std::vector<int32_t> rows;
  tensor::PageView view;
};

const char* name_of(LatentFormat format) {
  return format == LatentFormat::kBf16 ? "bf16" : format == LatentFormat::kFp8 ? "fp8" : "nvfp4";
}
const char* name_of(KeyFormat format) {
  return format == KeyFormat::kBf16 ? "bf16" : format == KeyFormat::kFp8 ? "fp8" : "mxfp4";
}

constexpr int64_t kC = 512;
constexpr int64_t kR = 64;
constexpr int64_t kSelected = 2048;

struct MlaData {
  MlaData(int64_t tokens, int64_t bytes) : pages(tokens, bytes) {}
  Pages pages;
  std::vector<bf16> q, out;
  std::vector<float> lse;
  std::vector<int32_t> positions, counts;
  ops::Selection selection;
};

// `rows` rows at the end of a context; selected: each attends to every second of 4,096 positions.
BenchCase mla_case(LatentFormat format, int64_t heads, int64_t rows, bool selected) {
  const int64_t tokens = selected ? 2 * kSelected : kSelected;
  const int64_t slots = selected ? kSelected - rows : tokens - rows / 2;
  BenchCase c;
  c.op = "mla";
  c.name =
      fmt::format("{} H={} T={} {}", name_of(format), heads, rows, selected ? "selected" : "dense");
  c.bytes = static_cast<double>((selected ? rows : 1) * slots * latent_bytes(format, kC, kR));
  c.flops = 2.0 * static_cast<double>(rows * slots * heads * (2 * kC + kR));
  c.prepare = [=](const ops::Context& context) -> std::function<void()> {
    auto d = std::make_shared<MlaData>(tokens, latent_bytes(format, kC, kR));
    const std::vector<bf16> latent = random_values(1, tokens * kC);
    const std::vector<bf16> rope = random_values(2, tokens * kR);
    const ops::PageWrite write{0, tokens, 0, d->pages.view};
    ops::write_latents(context, tensor::view(const_cast<bf16*>(latent.data()), {tokens, kC}),
                       tensor::view(const_cast<bf16*>(rope.data()), {tokens, kR}), format,
                       {&write, 1});
    d->q = random_values(3, rows * heads * (kC + kR));
    d->out.resize(static_cast<size_t>(rows * heads * kC));
    d->lse.resize(static_cast<size_t>(rows * heads));
    for (int64_t t = 0; selected && t < rows; ++t) {
      for (int32_t i = 0; i < slots; ++i) d->positions.push_back(2 * i);
      d->counts.push_back(static_cast<int32_t>(slots));
    }
    if (selected) {
      d->selection = {tensor::view(d->positions.data(), {rows, slots}),
                      tensor::view(d->counts.data(), {rows})};
    }
    return [=, &context] {
      const ops::MlaSequence s{0, rows, tokens - rows, d->pages.view};
      ops::mla(context, tensor::view(d->q.data(), {rows, heads, kC + kR}), format, kC, 0.07,
               {&s, 1}, selected ? &d->selection : nullptr,
               tensor::view(d->out.data(), {rows, heads, kC}),
               tensor::view(d->lse.data(), {rows, heads}));
    };
  };
  return c;
}

struct IndexData {
  IndexData(int64_t tokens, int64_t bytes) : pages(tokens, bytes) {}
  Pages pages;
  std::vector<bf16> q, gates, scores;
};

BenchCase index_case(KeyFormat format, int64_t heads, int64_t rows, int64_t tokens) {
  constexpr int64_t kJ = 128;
  BenchCase c;
  c.op = "index_score";
  c.name = fmt::format("{} I={} T={} S={}", name_of(format), heads, rows, tokens);
  c.bytes = static_cast<double>(tokens * key_bytes(format, kJ) + 2 * rows * tokens);
  c.flops = 2.0 * static_cast<double>(rows * (tokens - rows / 2) * heads * kJ);
  c.prepare = [=](const ops::Context& context) -> std::function<void()> {
    auto d = std::make_shared<IndexData>(tokens, key_bytes(format, kJ));
    const std::vector<bf16> keys = random_values(1, tokens * kJ);
    const ops::PageWrite write{0, tokens, 0, d->pages.view};
    ops::write_keys(context, tensor::view(const_cast<bf16*>(keys.data()), {tokens, kJ}), format,
                    {&write, 1});
    d->q = random_values(2, rows * heads * kJ);
    d->gates = random_values(3, rows * heads);
    d->scores.resize(static_cast<size_t>(rows * tokens));
    return [=, &context] {
      const ops::IndexSequence s{0, rows, tokens - rows, d->pages.view};
      ops::index_score(context, tensor::view(d->q.data(), {rows, heads, kJ}),
                       tensor::view(d->gates.data(), {rows, heads}), format, {&s, 1},
                       tensor::view(d->scores.data(), {rows, tokens}));
    };
  };
  return c;
}

struct TopkData {
  std::vector<bf16> scores;
  std::vector<int32_t> lengths, out, counts;
};

BenchCase topk_case(int64_t tokens) {
  BenchCase c;
  c.op = "topk";
  c.name = fmt::format("k={} S={}", kSelected, tokens);
  c.bytes = 2.0 * static_cast<double>(tokens);
  c.prepare = [=](const ops::Context& context) -> std::function<void()> {
    auto d = std::make_shared<TopkData>();
    d->scores = random_values(1, tokens);
    d->lengths = {static_cast<int32_t>(tokens)};
    d->out.resize(kSelected);
    d->counts.resize(1);
    return [=, &context] {
      ops::topk(context, tensor::view(d->scores.data(), {1, tokens}),
                tensor::view(d->lengths.data(), {1}), kSelected,
                tensor::view(d->out.data(), {1, kSelected}), tensor::view(d->counts.data(), {1}));
    };
  };
  return c;
}

}  // namespace

std::vector<BenchCase> attention_bench() {
  std::vector<BenchCase> cases;
  for (const LatentFormat format :
       {LatentFormat::kBf16, LatentFormat::kFp8, LatentFormat::kNvfp4}) {
    cases.push_back(mla_case(format, 96, 1, true));
    cases.push_back(mla_case(format, 96, 8, true));
    cases.push_back(mla_case(format, 96, 16, false));
    cases.push_back(mla_case(format, 12, 1, true));
    cases.push_back(mla_case(format, 4, 1, false));
    cases.push_back(mla_case(format, 4, 512, false));
  }
  for (const KeyFormat format : {KeyFormat::kBf16, KeyFormat::kFp8, KeyFormat::kMxfp4}) {
    cases.push_back(index_case(format, 32, 1, 16384));
    cases.push_back(index_case(format, 32, 4, 16384));
    cases.push_back(index_case(format, 32, 64, 16384));
    cases.push_back(index_case(format, 4, 1, 16384));
  }
  for (const int64_t tokens : {4096, 16384, 131072}) cases.push_back(topk_case(tokens));
  return cases;
}

}  // namespace perigee::bench
