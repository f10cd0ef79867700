// What    Plans the rows of the packed cache: one pool of equal rows, each lent to one group of layers at a time.
// Owner   cache.
// Threads Pure functions.
// Errors  plan_rows() refuses a spec without layers or with sizes that are not positive, in one sentence.
// Source  The packed planner of public engines (block-outermost rows, groups that alias each other), for any set of page classes.
//
// A layer keeps pages (records per token, perhaps several kinds side by side: latents and index keys) or a state (bytes per
// request, whatever its length). Layers with pages that see the same tokens form one group; layers with states are dealt into
// groups of about as many layers. A group's row holds, tightly and in order, all pages of its layers for one block of tokens
// (kind by kind: every layer's latents, then every layer's keys), or all states of its layers. A row is as long as the longest
// group's, and a block is the smallest power of two of tokens whose pages are at least as long as the states, so that states
// waste no room that pages could use, and blocks of engines with different state sizes divide one another.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace perigee::cache {

constexpr int64_t kPageTokens = 64;        // kernels read pages of this many tokens
constexpr int64_t kPlaceAlignment = 256;  // of every layer's place in a row, and of the row; published widths need no padding

struct PageSpec {
  std::string name;              // "latent", "key", ...
  int64_t record_bytes = 0;
  int64_t tokens_per_record = 1;  // above 1 in caches that pool tokens; divides kPageTokens
};

struct LayerSpec {
  std::vector<PageSpec> pages;  // per-token records; empty: the layer keeps a state
  int64_t window = 0;           // tokens that the pages must keep, 0: all; layers of one window form a group
  int64_t state_bytes = 0;
};

struct Place {
  int group = 0;
  int64_t offset = 0;  // in the row
  int64_t bytes = 0;   // of one block, or of the state
};

struct Group {
  bool states = false;
  int64_t window = 0;
  std::vector<int64_t> layers;
  int64_t bytes = 0;  // of the row that its layers fill
};

struct Layout {
  int64_t block_tokens = 0;
  int64_t row_bytes = 0;
  std::vector<Group> groups;               // with pages first
  std::vector<std::vector<Place>> places;  // of each layer, one for each of its pages, or one for its state

  int64_t state_groups() const;
  int64_t page_groups() const { return static_cast<int64_t>(groups.size()) - state_groups(); }
  // Bytes of all pages per token.
  int64_t token_bytes() const;
};

// `block_tokens_min`: a power of two, at least kPageTokens.
Result<Layout> plan_rows(const std::vector<LayerSpec>& layers, int64_t block_tokens_min = kPageTokens);

// Rows that one request of `tokens` tokens holds while it runs.
int64_t rows_of_request(const Layout& layout, int64_t tokens);

}  // namespace perigee::cache
