// What    The operands of one case where the device computes: seeded values, packed weights in many copies, pages and the parts
//         of a step. One code for the CPU and a GPU.
// Owner   bench.
// Threads One.
// Errors  Memory that the device refuses ends the program: a case cannot do with less.
#pragma once

#include <cstdint>
#include <deque>
#include <initializer_list>
#include <span>
#include <vector>

#include "ops/context.h"
#include "tensor/arena.h"
#include "tensor/parts.h"
#include "tensor/weight.h"

namespace perigee::bench {

using tensor::Tensor;

// Weights and cached records take at least this much, so that runs find them in memory: no last level cache is as large.
constexpr int64_t kColdBytes = int64_t{768} << 20;

// The same bytes many times, one copy behind the other at equal distances; used in turn.
class Copies {
 public:
  Copies() = default;
  Copies(std::byte* base, int64_t distance, int64_t count) : base_(base), distance_(distance), count_(count) {}

  std::byte* at(int64_t i) const { return base_ + i * distance_; }
  std::byte* next() { return at(turn_++ % count_); }
  int64_t distance() const { return distance_; }
  int64_t count() const { return count_; }

 private:
  std::byte* base_ = nullptr;
  int64_t distance_ = 0;
  int64_t count_ = 1;
  int64_t turn_ = 0;
};

// How many copies of so many bytes make kColdBytes.
constexpr int64_t cold_copies(int64_t bytes) { return (kColdBytes + bytes - 1) / bytes; }

// Uniform in (-scale, scale). Long vectors repeat themselves after a prime number of values.
std::vector<bf16> random_halves(uint64_t seed, int64_t count, float scale = 1);
std::vector<float> random_floats(uint64_t seed, int64_t count, float scale = 1);

// How the device's products read matrices.
tensor::WeightLayout dense_layout(tensor::Device device);
tensor::WeightLayout expert_layout(tensor::Device device);

// One sequence's rows of a step with tables of its own.
struct PartPlan {
  int64_t row_begin = 0;
  int64_t rows = 0;
  int64_t position = 0;
  std::vector<int32_t> blocks;
  std::vector<int32_t> states;
  int64_t slot = 0;
};

class Operands {
 public:
  explicit Operands(const ops::Context& context) : context_(context) {}
  Operands(const Operands&) = delete;
  Operands& operator=(const Operands&) = delete;

  // Lives as long as the operands, so that runs may refer to it.
  const ops::Context& context() const { return context_; }
  tensor::Device device() const { return context_.device; }
  // The CPU of the same machine, which prepares what has to be encoded.
  ops::Context host() const { return ops::make_context(tensor::Device::kCpu, context_.pool); }

  // Zeros.
  Tensor make(tensor::DType dtype, std::initializer_list<int64_t> dims);
  // A copy of host data on the device.
  template <class T>
  Tensor put(const std::vector<T>& values, std::initializer_list<int64_t> dims) {
    const Tensor to = make(tensor::DTypeOf<T>::value, dims);
    CHECK_EQ(to.size(), static_cast<int64_t>(values.size()));
    if (!values.empty()) context_.mover().copy(to.data, values.data(), values.size() * sizeof(T));
    return to;
  }
  Tensor halves(uint64_t seed, std::initializer_list<int64_t> dims, float scale = 1);
  Tensor floats(uint64_t seed, std::initializer_list<int64_t> dims, float scale = 1);

  // `count` copies of host bytes; by default as many as kColdBytes need.
  Copies copies(std::span<const std::byte> bytes, int64_t count = 0);
  // Gives all copies what the first one holds by now.
  void spread(const Copies& copies) const;
  // A packed random matrix.
  Copies dense(int64_t n, int64_t k);
  // Sets of `experts` packed random MXFP4 matrices [n, k].
  std::vector<std::vector<tensor::Weight>> expert_sets(int64_t experts, int64_t n, int64_t k);

  // The parts of a step of `step_rows` rows, with their tables where the device reads them.
  tensor::Parts parts(std::vector<PartPlan> plans, int64_t step_rows);

 private:
  struct Tables {
    std::vector<PartPlan> plans;
    std::vector<tensor::Part> host;
  };

  std::byte* take(size_t bytes);

  ops::Context context_;
  std::deque<tensor::Arena> arenas_;
  std::deque<Tables> tables_;  // a deque: Parts refer to its elements
};

}  // namespace perigee::bench
