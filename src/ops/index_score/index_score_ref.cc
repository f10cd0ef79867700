#include <cmath>
#include <vector>

#include "num/record_codec.h"
#include "ops/index_score/index_score.h"
#include "ops/page_io/page_io.h"

namespace perigee::ops::ref {
namespace {

// The query as a reader of the key format would see it.
std::vector<double> through_format(KeyFormat format, const double* x, int64_t j) {
  if (format == KeyFormat::kF64) return std::vector<double>(x, x + j);
  std::vector<uint8_t> record(static_cast<size_t>(kRecordPage * key_bytes(format, j)));
  const std::vector<float> values(x, x + j);
  encode_key(format, values.data(), j, record.data(),
             record.data() + key_scale_offset(format, j, 0));
  const int32_t row = 0;
  const tensor::PageView page{reinterpret_cast<std::byte*>(record.data()), 0, &row,
                              tensor::kPageTokens, key_bytes(format, j)};
  std::vector<double> out(static_cast<size_t>(j));
  read_key(format, page, 0, j, out.data());
  return out;
}

}  // namespace

void index_score(const Context&, const Tensor& q, const Tensor& gates, KeyFormat format,
                 std::span<const IndexSequence> sequences, const Tensor& scores) {
  const int64_t heads = q.dims[1];
  const int64_t j = q.dims[2];
  const double scale = 1 / std::sqrt(static_cast<double>(heads) * static_cast<double>(j));
  std::vector<double> key(static_cast<size_t>(j));
  for (const IndexSequence& s : sequences) {
    for (int64_t i = 0; i < s.rows; ++i) {
      const int64_t t = s.row_begin + i;
      std::vector<std::vector<double>> query;
      for (int64_t h = 0; h < heads; ++h) {
        query.push_back(through_format(format, q.row<double>(t) + h * j, j));
      }
      for (int64_t p = 0; p <= s.position + i; ++p) {
        read_key(format, s.keys, p, j, key.data());
        double sum = 0;
        for (int64_t h = 0; h < heads; ++h) {
          double dot = 0;
          for (int64_t d = 0; d < j; ++d)
            dot +=
                query[static_cast<size_t>(h)][static_cast<size_t>(d)] * key[static_cast<size_t>(d)];
          sum += gates.row<double>(t)[h] * scale * (dot < 0 ? 0 : dot);
        }
        scores.row<double>(t)[p] = sum;
      }
    }
  }
}

}  // namespace perigee::ops::ref
