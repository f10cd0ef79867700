// What    Non-owning views of dense arrays: element type, place, dimensions and row stride.
// Owner   tensor.
// Threads Value types.
// Errors  Access with a wrong element type or rank is a bug and aborts.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "base/check.h"
#include "num/bf16.h"

namespace perigee::tensor {

// Where the arithmetic of a tensor happens. kReference is the double-precision device: host memory, nothing rounded.
enum class Device { kReference, kCpu, kCuda };

enum class DType : uint8_t { kF64, kF32, kBF16, kI32, kU8 };

constexpr int64_t dtype_bytes(DType t) {
  switch (t) {
    case DType::kF64: return 8;
    case DType::kF32: return 4;
    case DType::kBF16: return 2;
    case DType::kI32: return 4;
    case DType::kU8: return 1;
  }
  return 0;
}
const char* dtype_name(DType t);

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::kF64;
};
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kF32;
};
template <>
struct DTypeOf<bf16> {
  static constexpr DType value = DType::kBF16;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::kI32;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::kU8;
};

// Up to four dimensions, innermost contiguous; rows (index 0) may be further apart than their contents, all inner
// dimensions are dense.
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int rank = 0;
  std::array<int64_t, 4> dims = {1, 1, 1, 1};
  int64_t row_stride = 0;  // elements between consecutive indices of dimension 0

  int64_t rows() const { return dims[0]; }
  // Elements of one row: the product of all dimensions but the first.
  int64_t row_size() const { return dims[1] * dims[2] * dims[3]; }
  int64_t size() const { return rows() * row_size(); }

  template <class T>
  T* as() const {
    CHECK_EQ(static_cast<int>(dtype), static_cast<int>(DTypeOf<T>::value));
    return static_cast<T*>(data);
  }
  template <class T>
  T* row(int64_t i) const {
    return as<T>() + i * row_stride;
  }

  // Rows [begin, begin + count).
  Tensor slice(int64_t begin, int64_t count) const;
  // Columns [begin, begin + count) of a two-dimensional view, keeping the row stride.
  Tensor columns(int64_t begin, int64_t count) const;
  // The same dense elements under other dimensions; the row stride must allow it.
  Tensor reshape(std::initializer_list<int64_t> dims) const;
};

// A dense view of memory owned by somebody else.
Tensor view(void* data, DType dtype, std::initializer_list<int64_t> dims);

template <class T>
Tensor view(T* data, std::initializer_list<int64_t> dims) {
  return view(const_cast<void*>(static_cast<const void*>(data)), DTypeOf<T>::value, dims);
}

// Aborts unless the view has this type and these dimensions; `name` appears in the message. A dimension of -1 matches any.
void expect(const Tensor& t, const char* name, DType dtype, std::initializer_list<int64_t> dims);

}  // namespace perigee::tensor
