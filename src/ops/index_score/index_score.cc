#include "ops/index_score/index_score.h"

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

}  // namespace perigee::ops
