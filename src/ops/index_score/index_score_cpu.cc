#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/dynamic_items.h"
#include "ops/index_score/index_score.h"
#include "ops/index_score/index_score_simd.h"

namespace perigee::ops::cpu {
namespace {

constexpr int64_t kPage = tensor::kPageTokens;
// Decoded queries of a block of rows: 256 KiB, half a second-level cache.
constexpr int64_t kQueryNumbers = 1 << 16;
constexpr int64_t kRowsMax = 64;  // more rows no longer make decoding a tile noticeably cheaper
// A range of keys. Every range takes the block's queries through the format again, which costs about
// as much as scoring one page.
constexpr int64_t kPagesMin = 4;
constexpr int64_t kPagesMax = 64;

// A block of one sequence's rows against a range of its pages.
struct Item {
  const IndexSequence* sequence;
  int64_t first;  // row inside the sequence
  int64_t rows;
  int64_t page_begin;
  int64_t page_end;
};

std::vector<Item> make_items(std::span<const IndexSequence> sequences, int64_t rows_max,
                             int threads) {
  int64_t work = 0;  // pages of all blocks of rows
  for (const IndexSequence& s : sequences) {
    const int64_t blocks = (s.rows + rows_max - 1) / rows_max;
    work += blocks * ((s.position + s.rows + kPage - 1) / kPage);
  }
  // Small calls still have something for every thread.
  const int64_t parts = threads == 1 ? 1 : 2 * threads;
  const int64_t pages = std::clamp(work / parts, kPagesMin, kPagesMax);
  std::vector<Item> items;
  for (const IndexSequence& s : sequences) {
    for (int64_t first = 0; first < s.rows; first += rows_max) {
      const int64_t rows = std::min(rows_max, s.rows - first);
      const int64_t page_end = (s.position + first + rows + kPage - 1) / kPage;
      for (int64_t page = 0; page < page_end; page += pages) {
        items.push_back({&s, first, rows, page, std::min(page + pages, page_end)});
      }
    }
  }
  return items;
}

struct Scratch {
  std::vector<float> q, gates, values, row_major;
  std::vector<uint8_t> record;
  std::vector<int64_t> columns;
};

template <Isa isa>
void run_item(const Item& item, const Tensor& q, const Tensor& gates, KeyFormat format,
              const Tensor& scores, Scratch& scratch) {
  const int64_t heads = q.dims[1];
  const int64_t j = q.dims[2];
  const IndexSequence& s = *item.sequence;
  const int64_t row_begin = s.row_begin + item.first;
  scratch.q.resize(static_cast<size_t>(item.rows * heads * j));
  scratch.gates.resize(static_cast<size_t>(item.rows * heads));
  scratch.values.resize(static_cast<size_t>(kPage * j));
  scratch.row_major.resize(static_cast<size_t>(16 * (j + 15)));
  scratch.record.resize(static_cast<size_t>(key_bytes(format, j)));
  scratch.columns.resize(static_cast<size_t>(item.rows));

  const float scale =
      static_cast<float>(1 / std::sqrt(static_cast<double>(heads) * static_cast<double>(j)));
  for (int64_t i = 0; i < item.rows; ++i) {
    const bf16* row = q.row<bf16>(row_begin + i);
    const bf16* gate = gates.row<bf16>(row_begin + i);
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t at = i * heads + h;
      const float outer = IndexKernels<isa>::query(format, row + h * j, j, scratch.record.data(),
                                                   &scratch.q[static_cast<size_t>(at * j)]);
      scratch.gates[static_cast<size_t>(at)] = to_float(gate[h]) * scale * outer;
    }
  }

  float outer_scales[kPage];
  const IndexTile tile{scratch.values.data(), outer_scales};
  for (int64_t page = item.page_begin; page < item.page_end; ++page) {
    const int64_t begin = page * kPage;
    for (int64_t i = 0; i < item.rows; ++i) {
      scratch.columns[static_cast<size_t>(i)] =
          std::min(kPage, s.position + item.first + i + 1 - begin);
    }
    const uint8_t* bytes = reinterpret_cast<const uint8_t*>(s.keys.page(begin));
    IndexKernels<isa>::tile(format, bytes, j, scratch.columns.back(), scratch.row_major.data(),
                            tile);
    const IndexRows rows{scratch.q.data(),
                         scratch.gates.data(),
                         item.rows,
                         heads,
                         j,
                         scratch.columns.data(),
                         scores.row<bf16>(row_begin) + begin,
                         scores.row_stride};
    IndexKernels<isa>::score(rows, tile);
  }
}

}  // namespace

void index_score(const Context& context, const Tensor& q, const Tensor& gates, KeyFormat format,
                 std::span<const IndexSequence> sequences, const Tensor& scores) {
  const int64_t row_numbers = std::max<int64_t>(q.dims[1] * q.dims[2], 1);
  const int64_t rows_max = std::clamp<int64_t>(kQueryNumbers / row_numbers, 1, kRowsMax);
  const std::vector<Item> items = make_items(sequences, rows_max, context.pool->threads());
  with_isa(context.isa, [&]<Isa isa>() {
    for_each_item(context.pool, static_cast<int64_t>(items.size()), [&](int64_t i) {
      thread_local Scratch scratch;
      run_item<isa>(items[static_cast<size_t>(i)], q, gates, format, scores, scratch);
    });
  });
}

}  // namespace perigee::ops::cpu
