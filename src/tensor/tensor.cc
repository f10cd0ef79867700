#include "tensor/tensor.h"

#include <span>
#include <string>

namespace perigee::tensor {
namespace {

std::string dims_text(std::span<const int64_t> dims) {
  std::string text = "[";
  for (const int64_t d : dims) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(d);
  }
  return text + "]";
}

}  // namespace

const char* dtype_name(DType t) {
  switch (t) {
    case DType::kF64: return "F64";
    case DType::kF32: return "F32";
    case DType::kBF16: return "BF16";
    case DType::kI32: return "I32";
    case DType::kU8: return "U8";
  }
  return "?";
}

Tensor view(void* data, DType dtype, std::initializer_list<int64_t> dims) {
  CHECK(dims.size() >= 1 && dims.size() <= 4);
  Tensor t;
  t.data = data;
  t.dtype = dtype;
  t.rank = static_cast<int>(dims.size());
  size_t i = 0;
  for (const int64_t d : dims) t.dims[i++] = d;
  t.row_stride = t.row_size();
  return t;
}

Tensor Tensor::slice(int64_t begin, int64_t count) const {
  CHECK(begin >= 0 && count >= 0 && begin + count <= dims[0]);
  Tensor t = *this;
  t.data = static_cast<std::byte*>(data) + begin * row_stride * dtype_bytes(dtype);
  t.dims[0] = count;
  return t;
}

Tensor Tensor::columns(int64_t begin, int64_t count) const {
  CHECK_EQ(rank, 2);
  CHECK(begin >= 0 && count >= 0 && begin + count <= dims[1]);
  Tensor t = *this;
  t.data = static_cast<std::byte*>(data) + begin * dtype_bytes(dtype);
  t.dims[1] = count;
  return t;
}

Tensor Tensor::reshape(std::initializer_list<int64_t> to) const {
  Tensor t = view(data, dtype, to);
  CHECK_EQ(t.size(), size());
  if (t.dims[0] == dims[0]) {
    t.row_stride = row_stride;
  } else {
    CHECK_EQ(row_stride, row_size());
  }
  return t;
}

void expect(const Tensor& t, const char* name, DType dtype, std::initializer_list<int64_t> dims) {
  bool same = t.dtype == dtype && static_cast<size_t>(t.rank) == dims.size();
  size_t i = 0;
  for (const int64_t d : dims) {
    same = same && i < 4 && (d == -1 || t.dims[i] == d);
    ++i;
  }
  if (same) return;
  const std::string have = dims_text({t.dims.data(), static_cast<size_t>(t.rank)});
  const std::string want = dims_text({dims.begin(), dims.size()});
  check_failed(__FILE__, __LINE__,
               fmt::format("{} is {} {}, the contract says {} {}", name, dtype_name(t.dtype), have,
                           dtype_name(dtype), want));
}

}  // namespace perigee::tensor
