// What    What the tests of operations share: contexts for every instruction set and thread count,
//         padded row buffers, seeded values, comparison inside derived bounds, and the
//         row-independence harness.
// Owner   ops tests.
// Threads Used from the test's thread.
// Errors  GoogleTest failures.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <iostream>
#include <vector>

#include "base/rng.h"
#include "ops/context.h"

namespace perigee::ops::testing {

using tensor::Tensor;

constexpr double kRound32 = 0x1p-24;   // largest relative error of one rounding to FP32
constexpr double kRound16 = 0x1p-8;    // the same of BF16
constexpr double kFlushed = 0x1p-120;  // absolute slack for flushed denormals and products of them

inline ThreadPool* pool(int threads) {
  static ThreadPool pools[3] = {ThreadPool(1), ThreadPool(2), ThreadPool(3)};
  return &pools[threads - 1];
}

inline const char* isa_name(Isa isa) {
  return isa == Isa::kAvx512 ? "AVX-512" : isa == Isa::kAvx2 ? "AVX2" : "plain";
}

// The instruction sets that this machine can run; names the others once.
inline std::vector<Isa> isas() {
  std::vector<Isa> out = {Isa::kGeneric};
  if (cpu_features().avx2) out.push_back(Isa::kAvx2);
  if (cpu_features().avx512) out.push_back(Isa::kAvx512);
  static const bool told = [&] {
    for (const Isa isa : {Isa::kAvx2, Isa::kAvx512}) {
      if (std::find(out.begin(), out.end(), isa) == out.end()) {
        std::cout << "[ SKIPPED  ] " << isa_name(isa) << ": this machine lacks it" << std::endl;
      }
    }
    return true;
  }();
  (void)told;
  return out;
}

inline Context cpu(Isa isa, int threads = 1) {
  return {tensor::Device::kCpu, pool(threads), isa, false};
}
inline Context cpu() {
  return cpu(isas().back());
}
inline Context reference() {
  return {tensor::Device::kReference, pool(1), Isa::kGeneric, false};
}

// Bell-shaped values of this standard deviation.
inline std::vector<float> random_float(uint64_t seed, int64_t n, double scale) {
  std::vector<float> out(static_cast<size_t>(n));
  for (size_t i = 0; i < out.size(); ++i) {
    double sum = 0;
    for (uint64_t j = 0; j < 4; ++j) sum += random_uniform(seed, i * 4 + j) - 0.5;
    out[i] = static_cast<float>(sum * std::sqrt(3.0) * scale);
  }
  return out;
}

inline std::vector<bf16> random_half(uint64_t seed, int64_t n, double scale) {
  const std::vector<float> values = random_float(seed, n, scale);
  std::vector<bf16> out(values.size());
  for (size_t i = 0; i < out.size(); ++i) out[i] = to_bf16(values[i]);
  return out;
}

inline double widen(bf16 x) {
  return to_float(x);
}
inline double widen(float x) {
  return x;
}
inline double widen(double x) {
  return x;
}

template <class T>
std::vector<double> widen(const std::vector<T>& x) {
  std::vector<double> out(x.size());
  for (size_t i = 0; i < x.size(); ++i) out[i] = widen(x[i]);
  return out;
}

// A dense view of a test's data; operations only read what is const.
template <class T>
Tensor view(const std::vector<T>& data, std::initializer_list<int64_t> dims) {
  return tensor::view(const_cast<T*>(data.data()), dims);
}

// Rows with a gap behind each, so that strides are used; dense() also proves that nobody wrote into
// the gaps.
template <class T>
class Rows {
 public:
  Rows(int64_t rows, int64_t size, int64_t gap = 0)
      : rows_(rows),
        size_(size),
        stride_(size + gap),
        data_(static_cast<size_t>(rows * stride_ + 1)) {
    std::memset(static_cast<void*>(data_.data()), 0x5a, data_.size() * sizeof(T));
  }
  Rows(const std::vector<T>& all, int64_t size, const std::vector<int64_t>& pick, int64_t gap = 0)
      : Rows(static_cast<int64_t>(pick.size()), size, gap) {
    for (int64_t r = 0; r < rows_; ++r) {
      std::copy_n(all.begin() + pick[static_cast<size_t>(r)] * size, size,
                  data_.begin() + r * stride_);
    }
  }

  Tensor tensor() {
    Tensor t = tensor::view(data_.data(), {rows_, size_});
    t.row_stride = stride_;
    return t;
  }
  std::vector<T> dense() const {
    std::vector<T> out;
    T untouched;
    std::memset(static_cast<void*>(&untouched), 0x5a, sizeof(T));
    for (int64_t r = 0; r < rows_; ++r) {
      const T* row = data_.data() + r * stride_;
      out.insert(out.end(), row, row + size_);
      for (int64_t i = size_; i < stride_; ++i) {
        EXPECT_EQ(std::memcmp(&row[i], &untouched, sizeof(T)), 0) << "gap behind row " << r;
      }
    }
    return out;
  }

 private:
  int64_t rows_;
  int64_t size_;
  int64_t stride_;
  std::vector<T> data_;
};

inline std::vector<int64_t> iota(int64_t n) {
  std::vector<int64_t> out(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) out[static_cast<size_t>(i)] = i;
  return out;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

// Same NaN and infinity places first, then |got - want| <= bound, element by element.
template <class T>
void expect_within(const std::vector<T>& got, const std::vector<double>& want,
                   const std::function<double(size_t)>& bound) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const double g = widen(got[i]);
    ASSERT_EQ(std::isnan(g), std::isnan(want[i]))
        << "element " << i << ": " << g << ", " << want[i];
    if (std::isnan(g)) continue;
    if (std::isinf(g) || std::isinf(want[i])) {
      ASSERT_EQ(g, want[i]) << "element " << i;
      continue;
    }
    ASSERT_LE(std::abs(g - want[i]), bound(i) + kFlushed)
        << "element " << i << ": " << g << ", " << want[i];
  }
}

// Which rows of the test's data an operation gets, and how far apart they lie beyond their size.
struct Batch {
  std::vector<int64_t> pick;
  int64_t gap = 0;
};

// Runs an operation on many batches of the same `rows` rows under every instruction set and 1, 2
// and 3 threads; each row must have the bits that plain code gives when the row is alone. T is the
// element type of the result.
template <class T>
void expect_rows_independent(
    int64_t rows, int64_t row_size,
    const std::function<std::vector<T>(const Context&, const Batch&)>& run) {
  std::vector<T> alone;
  for (int64_t r = 0; r < rows; ++r) {
    const std::vector<T> row = run(cpu(Isa::kGeneric), {{r}, 0});
    ASSERT_EQ(static_cast<int64_t>(row.size()), row_size);
    alone.insert(alone.end(), row.begin(), row.end());
  }
  std::vector<Batch> batches = {{{}, 0}, {iota(rows), 0}};
  uint64_t draw = 0;
  for (const int64_t size : {1, 2, 7, 64}) {
    for (int64_t repeat = 0; repeat < 3; ++repeat) {
      Batch b{{}, repeat * 3};
      for (int64_t i = 0; i < size; ++i) {
        b.pick.push_back(
            static_cast<int64_t>(random_bits(11, draw++) % static_cast<uint64_t>(rows)));
      }
      batches.push_back(b);
    }
  }
  for (const Isa isa : isas()) {
    for (int threads = 1; threads <= 3; ++threads) {
      for (const Batch& b : batches) {
        const std::vector<T> out = run(cpu(isa, threads), b);
        ASSERT_EQ(out.size(), b.pick.size() * static_cast<size_t>(row_size));
        for (size_t i = 0; i < b.pick.size(); ++i) {
          ASSERT_EQ(std::memcmp(out.data() + static_cast<int64_t>(i) * row_size,
                                alone.data() + b.pick[i] * row_size,
                                static_cast<size_t>(row_size) * sizeof(T)),
                    0)
              << "row " << b.pick[i] << " at place " << i << " of " << b.pick.size() << ", "
              << isa_name(isa) << ", " << threads << " threads";
        }
      }
    }
  }
}

}  // namespace perigee::ops::testing
