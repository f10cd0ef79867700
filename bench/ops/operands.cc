#include "bench/ops/operands.h"

#include "base/rng.h"
#include "ops/gemm/gemm.h"
#include "ops/moe_gemm/moe_gemm.h"
#include "ops/moe_gemm/moe_gemm_cases.h"

namespace perigee::bench {
namespace {

using tensor::Device;
using tensor::WeightLayout;

constexpr int64_t kPeriod = 1'000'003;  // of random values: a prime, so that rows differ

template <class T, class F>
std::vector<T> random_values(uint64_t seed, int64_t count, float scale, F&& round) {
  std::vector<T> out(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<size_t>(i);
    out[at] = i < kPeriod ? round((random_uniform(seed, at) * 2 - 1) * scale) : out[static_cast<size_t>(i - kPeriod)];
  }
  return out;
}

}  // namespace

std::vector<bf16> random_halves(uint64_t seed, int64_t count, float scale) {
  return random_values<bf16>(seed, count, scale, [](float x) { return to_bf16(x); });
}

std::vector<float> random_floats(uint64_t seed, int64_t count, float scale) {
  return random_values<float>(seed, count, scale, [](float x) { return x; });
}

WeightLayout dense_layout(Device device) {
  return device == Device::kCuda ? WeightLayout::kFragmentBf16 : WeightLayout::kTiledBf16;
}

WeightLayout expert_layout(Device device) {
  return device == Device::kCuda ? WeightLayout::kFragmentMxfp4 : WeightLayout::kTiledMxfp4;
}

std::byte* Operands::take(size_t bytes) {
  if (bytes == 0) return nullptr;
  Result<tensor::Arena> arena = tensor::Arena::create(bytes, "a benchmark's operands", device());
  if (!arena.ok()) fmt::print(stderr, "perigee: {}\n", arena.error().message);
  CHECK(arena.ok());
  arenas_.push_back(std::move(*arena));
  arenas_.back().prefault();
  return arenas_.back().allocate(bytes);
}

Tensor Operands::make(tensor::DType dtype, std::initializer_list<int64_t> dims) {
  Tensor t = tensor::view(nullptr, dtype, dims);
  t.data = take(static_cast<size_t>(t.size() * tensor::dtype_bytes(dtype)));
  return t;
}

Tensor Operands::halves(uint64_t seed, std::initializer_list<int64_t> dims, float scale) {
  int64_t count = 1;
  for (const int64_t d : dims) count *= d;
  return put(random_halves(seed, count, scale), dims);
}

Tensor Operands::floats(uint64_t seed, std::initializer_list<int64_t> dims, float scale) {
  int64_t count = 1;
  for (const int64_t d : dims) count *= d;
  return put(random_floats(seed, count, scale), dims);
}

Copies Operands::copies(std::span<const std::byte> bytes, int64_t count) {
  const auto distance = static_cast<int64_t>(tensor::aligned(bytes.size()));
  if (count == 0) count = cold_copies(distance);
  const Copies to(take(static_cast<size_t>(distance * count)), distance, count);
  context_.mover().copy(to.at(0), bytes.data(), bytes.size());
  spread(to);
  return to;
}

void Operands::spread(const Copies& copies) const {
  const tensor::Mover mover = context_.mover();
  for (int64_t i = 1; i < copies.count(); ++i) mover.copy(copies.at(i), copies.at(0), static_cast<size_t>(copies.distance()));
}

Copies Operands::dense(int64_t n, int64_t k) {
  const WeightLayout layout = dense_layout(device());
  std::vector<std::byte> packed(static_cast<size_t>(ops::gemm_packed_bytes(layout, n, k)));
  ops::gemm_pack_rows(layout, random_halves(1, n * k, 0.1f).data(), n, k, k, packed.data(), n, 0);
  return copies(packed);
}

std::vector<std::vector<tensor::Weight>> Operands::expert_sets(int64_t experts, int64_t n, int64_t k) {
  const WeightLayout layout = expert_layout(device());
  const auto bytes = static_cast<size_t>(ops::moe_packed_bytes(layout, n, k));
  const ops::Mxfp4Rows rows = ops::random_mxfp4(1, n, k);
  std::vector<std::byte> packed(bytes);
  ops::moe_pack_mxfp4(layout, rows.codes.data(), rows.scales.data(), n, k, packed.data(), n, 0);
  const int64_t sets = cold_copies(static_cast<int64_t>(bytes) * experts);
  const Copies all = copies(packed, sets * experts);
  std::vector<std::vector<tensor::Weight>> out(static_cast<size_t>(sets));
  for (int64_t i = 0; i < sets * experts; ++i) {
    out[static_cast<size_t>(i / experts)].push_back({layout, n, k, all.at(i), nullptr});
  }
  return out;
}

tensor::Parts Operands::parts(std::vector<PartPlan> plans, int64_t step_rows) {
  Tables& tables = tables_.emplace_back();
  tables.plans = std::move(plans);
  std::vector<int32_t> part_of_row(static_cast<size_t>(step_rows), -1);
  for (const PartPlan& p : tables.plans) {
    for (int64_t r = 0; r < p.rows; ++r) {
      part_of_row[static_cast<size_t>(p.row_begin + r)] = static_cast<int32_t>(tables.host.size());
    }
    tables.host.push_back({p.row_begin, p.rows, p.position, p.blocks.data(), p.states.data(), p.slot});
  }
  if (device() != Device::kCuda) return {tables.host, nullptr, nullptr};
  // All tables in one piece, the parts refer into it.
  std::vector<int32_t> words;
  std::vector<size_t> begin;
  for (const PartPlan& p : tables.plans) {
    for (const std::vector<int32_t>* table : {&p.blocks, &p.states}) {
      begin.push_back(words.size());
      words.insert(words.end(), table->begin(), table->end());
    }
  }
  const Tensor there = put(words, {static_cast<int64_t>(words.size())});
  std::vector<tensor::Part> device_parts = tables.host;
  for (size_t i = 0; i < device_parts.size(); ++i) {
    device_parts[i].blocks = there.as<int32_t>() + begin[2 * i];
    device_parts[i].states = there.as<int32_t>() + begin[2 * i + 1];
  }
  const Copies list = copies(std::as_bytes(std::span(device_parts)), 1);
  const Tensor rows = put(part_of_row, {step_rows});
  return {tables.host, reinterpret_cast<const tensor::Part*>(list.at(0)), rows.as<int32_t>()};
}

}  // namespace perigee::bench
