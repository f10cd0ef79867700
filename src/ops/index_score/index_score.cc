#include "ops/index_score/index_score.h"

#include <algorithm>
#include <vector>

namespace perigee::ops {

void index_score(const Context& context, const Tensor& q, const Tensor& gates, KeyFormat format,
                 std::span<const IndexSequence> sequences, const Tensor& scores) {
  const tensor::DType act = activation_dtype(context.device);
  const int64_t rows = q.rows();
  tensor::expect(q, "q", act, {-1, -1, -1});
  tensor::expect(gates, "gates", act, {rows, q.dims[1]});
  tensor::expect(scores, "scores", act, {rows, -1});
  const int64_t bytes = key_bytes(format, q.dims[2]);
  CHECK_GT(bytes, 0);  // 0: the format cannot hold this width
  for (const IndexSequence& s : sequences) {
    CHECK(s.row_begin >= 0 && s.rows >= 0 && s.row_begin + s.rows <= rows);
    CHECK_GE(s.position, 0);
    CHECK_LE(s.position + s.rows, scores.dims[1]);
    CHECK_EQ(s.keys.token_bytes, bytes);
  }
  switch (context.device) {
    case tensor::Device::kReference:
      return ref::index_score(context, q, gates, format, sequences, scores);
    case tensor::Device::kCpu:
      CHECK(format != KeyFormat::kF64);
      return cpu::index_score(context, q, gates, format, sequences, scores);
    case tensor::Device::kCuda:
      break;
  }
  CHECK(false);
}

void index_score(const Context& context, const Tensor& q, const Tensor& gates, KeyFormat format,
                 const tensor::Parts& parts, const tensor::PagePlace& keys, int64_t first_row,
                 int64_t skip, const Tensor& scores) {
  const int64_t rows = scores.rows();
  CHECK(first_row >= 0 && first_row + rows <= q.rows());
  if (context.device == tensor::Device::kCuda) {
    tensor::expect(q, "q", tensor::DType::kBF16, {-1, -1, -1});
    tensor::expect(gates, "gates", tensor::DType::kBF16, {q.rows(), q.dims[1]});
    tensor::expect(scores, "scores", tensor::DType::kBF16, {-1, -1});
    CHECK_EQ(keys.token_bytes, key_bytes(format, q.dims[2]));
    CHECK(format != KeyFormat::kF64 && kCudaBuilt && parts.device != nullptr);
    if constexpr (kCudaBuilt) cuda::index_score(context, q, gates, format, parts, keys, first_row, skip, scores);
    return;
  }
  std::vector<IndexSequence> sequences;
  for (const tensor::Part& p : parts.host) {
    // Of the part's rows those in the block that see more than `skip` positions.
    const int64_t unscored = std::max<int64_t>(skip - p.position, 0);
    const int64_t begin = std::max(p.row_begin + unscored, first_row);
    const int64_t end = std::min(p.row_begin + p.rows, first_row + rows);
    if (begin >= end) continue;
    sequences.push_back({begin - first_row, end - begin, p.position + begin - p.row_begin, keys.of(p)});
  }
  index_score(context, q.slice(first_row, rows), gates.slice(first_row, rows), format, sequences, scores);
}

}  // namespace perigee::ops
