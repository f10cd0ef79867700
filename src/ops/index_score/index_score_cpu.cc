#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "ops/dynamic_items.h"
#include "ops/gemm/gemm_driver.h"
#include "ops/index_score/index_score.h"
#include "ops/index_score/index_score_simd.h"

namespace perigee::ops::cpu {
namespace {

constexpr int64_t kPage = tensor::kPageTokens;
// The vector files know these layouts by their own names.
static_assert(kIndexBlock == kGemmBlock && kIndexTile == kAmxTileBytes && kIndexPanels * kGemmPanel == kPage);
// Decoded queries of a block of rows: 128 KiB of BF16, at most half a second-level cache as FP32.
constexpr int64_t kQueryNumbers = 1 << 16;
constexpr int64_t kRowsMax = 64;  // more rows no longer make unpacking a page noticeably cheaper
// Vectors whose dots with a page (16 KiB) stay in the first cache until they are scores.
constexpr int64_t kGroupVectors = 64;
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

// Queries of a few rows as one kind of product wants them.
struct Group {
  int64_t first;  // row inside the item
  int64_t rows;
  int64_t vectors;
  bool tiles;
  std::vector<float> x;           // [vectors][padded], for vector instructions
  std::vector<std::byte> packed;  // [tile of 16 vectors][block][16][32], for matrix tiles

  int64_t padded_vectors() const { return (vectors + 15) / 16 * 16; }
};

struct Memory {
  std::vector<Group> groups;
  std::vector<bf16> queries, key_rows;
  std::vector<float> gates, query_scales, key_scales, dots;
  std::vector<uint8_t> record, panels;
  std::vector<int64_t> columns;
};

template <class T>
T* at(std::vector<T>& v, int64_t i) {
  return v.data() + i;
}

template <Isa isa>
class IndexItem {
 public:
  IndexItem(const Context& context, const Item& item, const Tensor& q, KeyFormat format,
            Memory& memory)
      : amx_(context.amx),
        item_(item),
        heads_(q.dims[1]),
        width_(index_width(format, q.dims[2])),
        format_(format),
        m_(memory) {}

  void run(const Tensor& q, const Tensor& gates, const Tensor& scores) {
    read_queries(q, gates);
    const IndexSequence& s = *item_.sequence;
    m_.key_rows.resize(static_cast<size_t>(16 * width_.padded()));
    m_.panels.resize(static_cast<size_t>(kIndexPanels * width_.blocks * kIndexTile));
    m_.key_scales.resize(static_cast<size_t>(width_.groups * kPage));
    m_.columns.resize(static_cast<size_t>(item_.rows));
#if defined(__x86_64__)
    std::optional<AmxTiles> configured;
    if (amx_) configured.emplace();
#endif
    for (int64_t page = item_.page_begin; page < item_.page_end; ++page) {
      const int64_t begin = page * kPage;
      for (int64_t i = 0; i < item_.rows; ++i) {
        *at(m_.columns, i) = std::min(kPage, s.position + item_.first + i + 1 - begin);
      }
      IndexKernels<isa>::panels(format_, width_,
                                reinterpret_cast<const uint8_t*>(s.keys.page(begin)),
                                m_.columns.back(), m_.key_rows.data(),
                                {m_.panels.data(), m_.key_scales.data()});
      for (Group& group : m_.groups) score(group, scores, begin);
    }
  }

 private:
  int64_t row_begin() const { return item_.sequence->row_begin + item_.first; }

  void read_queries(const Tensor& q, const Tensor& gates) {
    const int64_t j = width_.width;
    const int64_t vectors = item_.rows * heads_;
    m_.queries.resize(static_cast<size_t>(vectors * width_.padded()));
    m_.gates.resize(static_cast<size_t>(vectors));
    m_.query_scales.resize(static_cast<size_t>(vectors * width_.groups));
    m_.record.resize(static_cast<size_t>(key_bytes(format_, j)));
    const float factor =
        static_cast<float>(1 / std::sqrt(static_cast<double>(heads_) * static_cast<double>(j)));
    for (int64_t v = 0; v < vectors; ++v) {
      const int64_t row = row_begin() + v / heads_;
      IndexKernels<isa>::query(format_, width_, q.row<bf16>(row) + v % heads_ * j, m_.record.data(),
                               at(m_.queries, v * width_.padded()),
                               at(m_.query_scales, v * width_.groups));
      *at(m_.gates, v) = to_float(gates.row<bf16>(row)[v % heads_]) * factor;
    }
    const int64_t rows = std::max<int64_t>(1, kGroupVectors / std::max<int64_t>(heads_, 1));
    m_.groups.resize(static_cast<size_t>((item_.rows + rows - 1) / rows));
    int64_t first = 0;
    for (Group& group : m_.groups) {
      group.first = first;
      group.rows = std::min(rows, item_.rows - first);
      group.vectors = group.rows * heads_;
      group.tiles = amx_ && group.vectors >= kAmxRowsMin;
      pack(group);
      first += rows;
    }
  }

  void pack(Group& group) {
    const bf16* const from = at(m_.queries, group.first * heads_ * width_.padded());
    if (!group.tiles) {
      group.x.resize(static_cast<size_t>(group.vectors * width_.padded()));
      gemm_expand<isa>(from, group.vectors * width_.padded(), group.vectors * width_.padded(), 1.0f,
                       group.x.data());
      return;
    }
    const int64_t tiles = group.padded_vectors() / 16;
    AmxRows to = {nullptr, tiles, width_.blocks, width_.blocks};
    group.packed.resize(static_cast<size_t>(to.bytes()));
    to.data = group.packed.data();
    for (int64_t t = 0; t < tiles; ++t) {
      const bf16* rows[16];
      const int64_t count = std::min<int64_t>(16, group.vectors - t * 16);
      for (int64_t r = 0; r < count; ++r) rows[r] = from + (t * 16 + r) * width_.padded();
      amx_pack_tile(rows, count, width_.padded(), to, t);
    }
  }

  void score(const Group& group, const Tensor& scores, int64_t begin) {
    m_.dots.resize(static_cast<size_t>(width_.groups * kIndexPanels * group.padded_vectors() * 16));
    if (group.tiles) {
      tile_dots(group);
    } else {
      IndexKernels<isa>::dots(width_, group.x.data(), group.vectors, m_.panels.data(),
                              m_.dots.data());
    }
    const int64_t vector = group.first * heads_;
    const IndexRows rows{at(m_.gates, vector),
                         at(m_.query_scales, vector * width_.groups),
                         group.rows,
                         heads_,
                         width_.groups,
                         group.padded_vectors(),
                         at(m_.columns, group.first),
                         scores.row<bf16>(row_begin() + group.first) + begin,
                         scores.row_stride};
    IndexKernels<isa>::scores(rows, m_.dots.data(), m_.key_scales.data());
  }

  void tile_dots(const Group& group) {
#if defined(__x86_64__)
    const int64_t tiles = group.padded_vectors() / 16;
    AmxBlock block;
    block.a_tile_bytes = width_.blocks * kAmxTileBytes;
    block.w_panel_bytes = width_.blocks * kIndexTile;
    block.acc_panel_floats = tiles * kAmxTileFloats;
    for (int64_t g = 0; g < width_.groups; ++g) {
      const int64_t first = g * width_.group_blocks;
      block.blocks = std::min(width_.group_blocks, width_.blocks - first);
      for (int64_t p = 0; p < kIndexPanels; p += 2) {
        block.w = at(m_.panels, (p * width_.blocks + first) * kIndexTile);
        for (int64_t t = 0; t < tiles; t += 2) {
          block.a = group.packed.data() + (t * width_.blocks + first) * kAmxTileBytes;
          block.row_tiles = static_cast<int>(std::min<int64_t>(2, tiles - t));
          block.acc = at(m_.dots, ((g * kIndexPanels + p) * tiles + t) * kAmxTileFloats);
          amx_block(block);
        }
      }
    }
#else
    (void)group;
#endif
  }

  bool amx_;
  const Item& item_;
  int64_t heads_;
  IndexWidth width_;
  KeyFormat format_;
  Memory& m_;
};

}  // namespace

void index_score(const Context& context, const Tensor& q, const Tensor& gates, KeyFormat format,
                 std::span<const IndexSequence> sequences, const Tensor& scores) {
  const int64_t row_numbers = std::max<int64_t>(q.dims[1] * q.dims[2], 1);
  const int64_t rows_max = std::clamp<int64_t>(kQueryNumbers / row_numbers, 1, kRowsMax);
  const std::vector<Item> items = make_items(sequences, rows_max, context.pool->threads());
  with_isa(context.isa, [&]<Isa isa>() {
    for_each_item(context.pool, static_cast<int64_t>(items.size()), [&](int64_t i) {
      thread_local Memory memory;
      IndexItem<isa>(context, items[static_cast<size_t>(i)], q, format, memory)
          .run(q, gates, scores);
    });
  });
}

}  // namespace perigee::ops::cpu
