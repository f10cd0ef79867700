#include "cache/layout.h"

#include <algorithm>
#include <map>

namespace perigee::cache {
namespace {

constexpr int64_t kBlockTokensMax = int64_t{1} << 24;

int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }
int64_t divide_up(int64_t n, int64_t by) { return (n + by - 1) / by; }

int64_t page_bytes(const PageSpec& page, int64_t tokens) {
  return round_up(page.record_bytes * (tokens / page.tokens_per_record), kPlaceAlignment);
}

Status check(const std::vector<LayerSpec>& layers, int64_t block_tokens_min) {
  if (layers.empty()) return invalid_argument("a cache needs at least one layer");
  if (block_tokens_min < kPageTokens || (block_tokens_min & (block_tokens_min - 1)) != 0) {
    return invalid_argument("a block of {} tokens is no power of two from {} on", block_tokens_min, kPageTokens);
  }
  for (size_t l = 0; l < layers.size(); ++l) {
    if (layers[l].pages.empty() && layers[l].state_bytes <= 0) {
      return invalid_argument("layer {} keeps neither pages nor a state", l);
    }
    for (const PageSpec& p : layers[l].pages) {
      if (p.record_bytes <= 0 || p.tokens_per_record <= 0 || kPageTokens % p.tokens_per_record != 0) {
        return invalid_argument("layer {}: a {} record of {} bytes for {} tokens cannot be paged", l, p.name,
                                p.record_bytes, p.tokens_per_record);
      }
    }
  }
  return {};
}

// Layers in groups of d, for the d from the largest paged group's size on that leaves the fewest places empty; of equals the
// largest. (24 paged layers and 69 states: d = 24 leaves 3 places of 72 empty.)
int64_t state_group_count(const std::vector<Group>& paged, int64_t states) {
  int64_t least = 1;
  for (const Group& g : paged) least = std::max(least, static_cast<int64_t>(g.layers.size()));
  if (paged.empty()) least = states;
  int64_t best = least;
  int64_t best_empty = -1;
  for (int64_t d = least; d <= std::max(least, states); ++d) {
    int64_t empty = round_up(states, d) - states;
    for (const Group& g : paged) {
      const auto n = static_cast<int64_t>(g.layers.size());
      empty += round_up(n, d) - n;
    }
    if (best_empty < 0 || empty <= best_empty) {
      best = d;
      best_empty = empty;
    }
  }
  return divide_up(states, best);
}

std::vector<Group> make_groups(const std::vector<LayerSpec>& layers) {
  std::map<int64_t, Group> by_window;
  std::vector<int64_t> states;
  for (size_t l = 0; l < layers.size(); ++l) {
    if (layers[l].pages.empty()) {
      states.push_back(static_cast<int64_t>(l));
    } else {
      by_window[layers[l].window].layers.push_back(static_cast<int64_t>(l));
    }
  }
  std::vector<Group> groups;
  for (auto& [window, group] : by_window) {
    group.window = window;
    groups.push_back(std::move(group));
  }
  if (states.empty()) return groups;
  const auto count = static_cast<size_t>(state_group_count(groups, static_cast<int64_t>(states.size())));
  const size_t first = groups.size();
  groups.resize(first + count);
  // One layer after the other to one group after the other: a cut of the model by depth cuts every group alike.
  for (size_t i = 0; i < states.size(); ++i) {
    groups[first + i % count].states = true;
    groups[first + i % count].layers.push_back(states[i]);
  }
  return groups;
}

int64_t group_bytes(const std::vector<LayerSpec>& layers, const Group& group, int64_t tokens) {
  int64_t bytes = 0;
  for (const int64_t l : group.layers) {
    const LayerSpec& layer = layers[static_cast<size_t>(l)];
    if (group.states) bytes += round_up(layer.state_bytes, kPlaceAlignment);
    for (const PageSpec& p : layer.pages) bytes += page_bytes(p, tokens);
  }
  return bytes;
}

// Kind by kind, so that the pages of one kind stand at a constant distance from layer to layer.
void place_group(const std::vector<LayerSpec>& layers, int index, Layout& layout) {
  Group& group = layout.groups[static_cast<size_t>(index)];
  int64_t offset = 0;
  size_t kinds = 0;
  for (const int64_t l : group.layers) kinds = std::max(kinds, layers[static_cast<size_t>(l)].pages.size());
  for (size_t kind = 0; kind < std::max<size_t>(kinds, 1); ++kind) {
    for (const int64_t l : group.layers) {
      const LayerSpec& layer = layers[static_cast<size_t>(l)];
      if (!group.states && kind >= layer.pages.size()) continue;
      const int64_t bytes = group.states ? round_up(layer.state_bytes, kPlaceAlignment)
                                         : page_bytes(layer.pages[kind], layout.block_tokens);
      layout.places[static_cast<size_t>(l)].push_back({index, offset, bytes});
      offset += bytes;
    }
  }
  group.bytes = offset;
}

}  // namespace

int64_t Layout::state_groups() const {
  return std::count_if(groups.begin(), groups.end(), [](const Group& g) { return g.states; });
}

int64_t Layout::token_bytes() const {
  int64_t bytes = 0;
  for (const Group& g : groups) bytes += g.states ? 0 : g.bytes;
  return bytes / block_tokens;
}

Result<Layout> plan_rows(const std::vector<LayerSpec>& layers, int64_t block_tokens_min) {
  const Status checked = check(layers, block_tokens_min);
  if (!checked.ok()) return checked.error();
  Layout layout;
  layout.groups = make_groups(layers);
  int64_t states = 0;
  bool paged = false;
  for (const Group& g : layout.groups) {
    if (g.states) states = std::max(states, group_bytes(layers, g, 0));
    paged = paged || !g.states;
  }
  // The largest paged group sets the row; it must hold the states.
  const auto pages = [&](int64_t tokens) {
    int64_t bytes = 0;
    for (const Group& g : layout.groups) bytes = std::max(bytes, g.states ? 0 : group_bytes(layers, g, tokens));
    return bytes;
  };
  layout.block_tokens = block_tokens_min;
  while (paged && pages(layout.block_tokens) < states && layout.block_tokens < kBlockTokensMax) layout.block_tokens *= 2;
  layout.row_bytes = std::max(states, pages(layout.block_tokens));
  layout.places.resize(layers.size());
  for (size_t g = 0; g < layout.groups.size(); ++g) place_group(layers, static_cast<int>(g), layout);
  return layout;
}

int64_t rows_of_request(const Layout& layout, int64_t tokens) {
  int64_t rows = layout.state_groups();
  for (const Group& g : layout.groups) {
    if (g.states) continue;
    // A window's blocks: the one it begins in and the one it ends in besides those between.
    const int64_t kept = g.window > 0 ? std::min(tokens, g.window + layout.block_tokens) : tokens;
    rows += divide_up(kept, layout.block_tokens);
  }
  return rows;
}

}  // namespace perigee::cache
