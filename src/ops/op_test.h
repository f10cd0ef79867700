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
#include "tensor/gpu.h"
#include "tensor/parts.h"

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
  return {tensor::Device::kCpu, pool(threads), isa, false, nullptr};
}
inline Context cpu() {
  return cpu(isas().back());
}
inline Context reference() {
  return {tensor::Device::kReference, pool(1), Isa::kGeneric, false, nullptr};
}

// The GPU of this machine; none: what is missing has been printed once.
inline const Context* gpu() {
  static tensor::GpuStream stream;
  static Context context = reference();
  static const bool found = [] {
    const Result<tensor::GpuInfo> info = tensor::open_gpu(0);
    if (!info.ok()) {
      std::cout << "[ SKIPPED  ] GPU: " << info.error().message << std::endl;
      return false;
    }
    stream = std::move(tensor::GpuStream::create()).value();
    context.device = tensor::Device::kCuda;
    context.stream = stream.handle();
    return true;
  }();
  return found ? &context : nullptr;
}

// The devices whose results are compared with the reference.
inline std::vector<Context> devices() {
  std::vector<Context> out = {cpu()};
  if (gpu() != nullptr) out.push_back(*gpu());
  return out;
}

// Gives an operation's tensors to a device: themselves on the CPU; on a GPU copies of their memory, gaps between rows
// included, which come back to the host at the end. Two views of one place stay two views of one copy.
class OnDevice {
 public:
  explicit OnDevice(const Context& context) : gpu_(context.device == tensor::Device::kCuda) {
    if (gpu_) stream_ = std::move(tensor::GpuStream::create()).value();
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() { fetch(); }

  // Brings everything back to the host; also done at the end.
  void fetch() {
    if (!gpu_) return;
    tensor::wait_for_gpu("an operation under test");
    for (const Copy& c : copies_) stream_.to_host(c.host, c.arena.data(), c.bytes);
    stream_.wait("copying results");
  }

  Tensor operator()(Tensor t) {
    if (!gpu_ || t.size() == 0) return t;
    const size_t bytes = static_cast<size_t>(((t.rows() - 1) * t.row_stride + t.row_size()) * tensor::dtype_bytes(t.dtype));
    for (const Copy& c : copies_) {
      if (c.host != t.data || c.bytes < bytes) continue;
      t.data = c.arena.data();
      return t;
    }
    Copy copy = {t.data, bytes, std::move(tensor::GpuArena::create(bytes, "a test")).value()};
    stream_.to_gpu(copy.arena.allocate(bytes), t.data, bytes);
    stream_.wait("copying operands");
    t.data = copy.arena.data();
    copies_.push_back(std::move(copy));
    return t;
  }

 private:
  struct Copy {
    void* host;
    size_t bytes;
    tensor::GpuArena arena;
  };
  bool gpu_;
  tensor::GpuStream stream_;
  std::vector<Copy> copies_;
};

// One sequence's rows of a step with tables of its own.
struct TestPart {
  int64_t row_begin = 0;
  int64_t rows = 0;
  int64_t position = 0;
  std::vector<int32_t> blocks;
  std::vector<int32_t> states;
  int64_t slot = 0;
};

// The parts of a step of `step_rows` rows, on the host and, for a GPU, there too.
class StepParts {
 public:
  StepParts(const Context& context, std::vector<TestPart> parts, int64_t step_rows)
      : parts_(std::move(parts)), part_of_row_(static_cast<size_t>(step_rows), -1) {
    size_t tables = 0;
    for (size_t i = 0; i < parts_.size(); ++i) {
      const TestPart& p = parts_[i];
      host_.push_back({p.row_begin, p.rows, p.position, p.blocks.data(), p.states.data(), p.slot});
      for (int64_t r = 0; r < p.rows; ++r) part_of_row_[static_cast<size_t>(p.row_begin + r)] = static_cast<int32_t>(i);
      tables += p.blocks.size() + p.states.size();
    }
    if (context.device == tensor::Device::kCuda) to_gpu(tables);
  }

  tensor::Parts operator()() const { return {host_, device_, rows_}; }

 private:
  void to_gpu(size_t tables) {
    const size_t bytes = tables * 4 + part_of_row_.size() * 4 + parts_.size() * sizeof(tensor::Part);
    const size_t pieces = 2 * parts_.size() + 2;
    arena_ = std::move(tensor::GpuArena::create(bytes + pieces * tensor::kGpuAlignment, "a test")).value();
    tensor::GpuStream stream = std::move(tensor::GpuStream::create()).value();
    const auto put = [&](const void* from, size_t n) {
      std::byte* to = arena_.allocate(n);
      if (n > 0) stream.to_gpu(to, from, n);
      return to;
    };
    std::vector<tensor::Part> there = host_;
    for (size_t i = 0; i < parts_.size(); ++i) {
      there[i].blocks = reinterpret_cast<int32_t*>(put(parts_[i].blocks.data(), parts_[i].blocks.size() * 4));
      there[i].states = reinterpret_cast<int32_t*>(put(parts_[i].states.data(), parts_[i].states.size() * 4));
    }
    device_ = reinterpret_cast<tensor::Part*>(put(there.data(), there.size() * sizeof(tensor::Part)));
    rows_ = reinterpret_cast<int32_t*>(put(part_of_row_.data(), part_of_row_.size() * 4));
    stream.wait("copying the parts of a step");
  }

  std::vector<TestPart> parts_;
  std::vector<tensor::Part> host_;
  std::vector<int32_t> part_of_row_;
  tensor::GpuArena arena_;
  const tensor::Part* device_ = nullptr;
  const int32_t* rows_ = nullptr;
};

// Memory of a test that an operation on a GPU reads and writes through places of its own, there and back.
class BytesOnDevice {
 public:
  BytesOnDevice(const Context& context, std::vector<uint8_t>& bytes) : on_(context) {
    t_ = on_(tensor::view(bytes.data(), {static_cast<int64_t>(bytes.size())}));
  }
  std::byte* data() const { return static_cast<std::byte*>(t_.data); }
  // Brings the bytes back now.
  void fetch() { on_.fetch(); }

 private:
  OnDevice on_;
  Tensor t_;
};

// Norm of the difference over norm.
inline double relative_norm(const std::vector<double>& got, const std::vector<double>& want) {
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    difference += (got[i] - want[i]) * (got[i] - want[i]);
    norm += want[i] * want[i];
  }
  return std::sqrt(difference / norm);
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

// Runs an operation on many batches of the same `rows` rows under every instruction set and 1, 2 and 3 threads, and on the
// GPU if there is one (and the operation runs there); each row must have the bits that it has alone: in plain code, or on the
// GPU. T is the element type of the result.
template <class T>
void expect_rows_independent(int64_t rows, int64_t row_size,
                             const std::function<std::vector<T>(const Context&, const Batch&)>& run, bool on_gpu = true) {
  std::vector<Batch> batches = {{{}, 0}, {iota(rows), 0}};
  uint64_t draw = 0;
  for (const int64_t size : {1, 2, 7, 64}) {
    for (int64_t repeat = 0; repeat < 3; ++repeat) {
      Batch b{{}, repeat * 3};
      for (int64_t i = 0; i < size; ++i) {
        b.pick.push_back(static_cast<int64_t>(random_bits(11, draw++) % static_cast<uint64_t>(rows)));
      }
      batches.push_back(b);
    }
  }
  const auto alone_on = [&](const Context& context) {
    std::vector<T> alone;
    for (int64_t r = 0; r < rows; ++r) {
      const std::vector<T> row = run(context, {{r}, 0});
      EXPECT_EQ(static_cast<int64_t>(row.size()), row_size);
      alone.insert(alone.end(), row.begin(), row.end());
    }
    return alone;
  };
  const auto check = [&](const Context& context, const std::vector<T>& alone, const std::string& name) {
    for (const Batch& b : batches) {
      const std::vector<T> out = run(context, b);
      ASSERT_EQ(out.size(), b.pick.size() * static_cast<size_t>(row_size));
      for (size_t i = 0; i < b.pick.size(); ++i) {
        ASSERT_EQ(std::memcmp(out.data() + static_cast<int64_t>(i) * row_size, alone.data() + b.pick[i] * row_size,
                              static_cast<size_t>(row_size) * sizeof(T)),
                  0)
            << "row " << b.pick[i] << " at place " << i << " of " << b.pick.size() << ", " << name;
      }
    }
  };
  const std::vector<T> alone = alone_on(cpu(Isa::kGeneric));
  for (const Isa isa : isas()) {
    for (int threads = 1; threads <= 3; ++threads) {
      check(cpu(isa, threads), alone, fmt::format("{}, {} threads", isa_name(isa), threads));
    }
  }
  if (on_gpu && gpu() != nullptr) check(*gpu(), alone_on(*gpu()), "GPU");
}

}  // namespace perigee::ops::testing
