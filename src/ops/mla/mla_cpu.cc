#include <algorithm>
#include <limits>
#include <vector>

#include "ops/dynamic_items.h"
#include "ops/mla/mla.h"
#include "ops/mla/mla_simd.h"

namespace perigee::ops::cpu {
namespace {

// (Row, head) pairs that share a decoded tile: decoding costs a few percent then.
constexpr int64_t kPairs = 256;
constexpr int64_t kRowsMax = 64;
constexpr int64_t kHeadGroup = 6;  // heads of one register tile (num/dot_tile.h)

// A block of rows of one sequence, and a block of heads. Rows that see their whole context share
// decoded tiles; a row with a list of its own stands alone.
struct Item {
  const MlaSequence* sequence;
  int64_t first;  // row inside the sequence
  int64_t rows;
  bool listed;
  int64_t head_begin = 0;
  int64_t heads = 0;
};

bool sees_everything(const Selection* selection, const MlaSequence& s, int64_t i) {
  return selection == nullptr ||
         selection->counts.as<int32_t>()[s.row_begin + i] == s.position + i + 1;
}

std::vector<Item> make_items(std::span<const MlaSequence> sequences, const Selection* selection,
                             int64_t heads, int threads) {
  const int64_t rows_max = std::clamp<int64_t>(kPairs / std::max<int64_t>(heads, 1), 1, kRowsMax);
  std::vector<Item> blocks;
  for (const MlaSequence& s : sequences) {
    for (int64_t i = 0; i < s.rows;) {
      int64_t n = 0;
      while (n < rows_max && i + n < s.rows && sees_everything(selection, s, i + n)) ++n;
      blocks.push_back({&s, i, std::max<int64_t>(n, 1), n == 0});
      i += blocks.back().rows;
    }
  }
  if (blocks.empty()) return blocks;
  std::reverse(blocks.begin(), blocks.end());  // the longest contexts first
  // Few rows: heads are divided among the threads, each of which decodes the tiles it reads.
  const int64_t count = static_cast<int64_t>(blocks.size());
  const int64_t parts = (threads + count - 1) / count;
  const int64_t groups = (heads + kHeadGroup - 1) / kHeadGroup;
  const int64_t step = std::max<int64_t>((groups + parts - 1) / parts, 1) * kHeadGroup;
  std::vector<Item> items;
  for (const Item& block : blocks) {
    for (int64_t h = 0; h < heads; h += step) {
      items.push_back(block);
      items.back().head_begin = h;
      items.back().heads = std::min(step, heads - h);
    }
  }
  return items;
}

struct Scratch {
  std::vector<float> q, max, sum, acc, rows, columns;
};

struct Call {
  const Tensor& q;
  LatentFormat format;
  int64_t c;
  float scale;
  const Selection* selection;
  const Tensor& out;
  const Tensor& lse;
};

int64_t round16(int64_t n) {
  return (n + 15) / 16 * 16;
}

// Where the records of slots [begin, begin + n) of the item's list lie.
void find_records(const Item& item, const Call& call, int64_t begin, int64_t n,
                  const uint8_t** records) {
  const tensor::PageView& pages = item.sequence->latents;
  const int32_t* list = nullptr;
  if (item.listed) {
    list = call.selection->positions.row<int32_t>(item.sequence->row_begin + item.first);
  }
  for (int64_t i = 0; i < n; ++i) {
    const int64_t position = list != nullptr ? list[begin + i] : begin + i;
    records[i] = reinterpret_cast<const uint8_t*>(pages.page(position)) +
                 position % tensor::kPageTokens * pages.token_bytes;
  }
}

// Slots that row i of the item sees.
int64_t slots_of(const Item& item, const Call& call, int64_t i) {
  if (item.listed) {
    return call.selection->counts.as<int32_t>()[item.sequence->row_begin + item.first];
  }
  return item.sequence->position + item.first + i + 1;
}

template <Isa isa>
void run_item(const Item& item, const Call& call, Scratch& scratch) {
  using Kernels = MlaKernels<isa>;
  const int64_t width = call.q.dims[2];
  const int64_t acc_stride = round16(call.c);
  const size_t pairs = static_cast<size_t>(item.rows * item.heads);
  scratch.q.resize(pairs * static_cast<size_t>(width));
  scratch.max.assign(pairs, -std::numeric_limits<float>::infinity());
  scratch.sum.assign(pairs, 0.0f);
  scratch.acc.assign(pairs * static_cast<size_t>(acc_stride), 0.0f);
  scratch.rows.resize(static_cast<size_t>(kMlaPiece * round16(width)));
  scratch.columns.resize(static_cast<size_t>(kMlaPiece * width));
  const MlaTile tile{scratch.rows.data(), round16(width), scratch.columns.data()};
  const int64_t row_begin = item.sequence->row_begin + item.first;

  const auto heads_of = [&](int64_t i) {
    const int64_t pair = i * item.heads;
    return MlaHeads{scratch.q.data() + pair * width,
                    item.heads,
                    width,
                    call.c,
                    call.scale,
                    scratch.max.data() + pair,
                    scratch.sum.data() + pair,
                    scratch.acc.data() + pair * acc_stride,
                    acc_stride};
  };
  for (int64_t i = 0; i < item.rows; ++i) {
    Kernels::queries(call.q.row<bf16>(row_begin + i) + item.head_begin * width, item.heads * width,
                     scratch.q.data() + i * item.heads * width);
  }
  const int64_t slots = slots_of(item, call, item.rows - 1);
  for (int64_t begin = 0; begin < slots; begin += kMlaPiece) {
    const uint8_t* records[kMlaPiece];
    const int64_t n = std::min(kMlaPiece, slots - begin);
    find_records(item, call, begin, n, records);
    Kernels::tile(call.format, records, n, call.c, width - call.c, tile);
    for (int64_t i = 0; i < item.rows; ++i) {
      const int64_t visible = std::min(kMlaPiece, slots_of(item, call, i) - begin);
      if (visible > 0) Kernels::piece(heads_of(i), tile, visible);
    }
  }
  for (int64_t i = 0; i < item.rows; ++i) {
    Kernels::finish(heads_of(i), call.out.row<bf16>(row_begin + i) + item.head_begin * call.c,
                    call.lse.row<float>(row_begin + i) + item.head_begin);
  }
}

}  // namespace

void mla(const Context& context, const Tensor& q, LatentFormat format, int64_t latent_width,
         double scale, std::span<const MlaSequence> sequences, const Selection* selection,
         const Tensor& out, const Tensor& lse) {
  const Call call{q, format, latent_width, static_cast<float>(scale), selection, out, lse};
  const std::vector<Item> items =
      make_items(sequences, selection, q.dims[1], context.pool->threads());
  with_isa(context.isa, [&]<Isa isa>() {
    for_each_item(context.pool, static_cast<int64_t>(items.size()), [&](int64_t i) {
      thread_local Scratch scratch;
      run_item<isa>(items[static_cast<size_t>(i)], call, scratch);
    });
  });
}

}  // namespace perigee::ops::cpu
