#include "cache/layout.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

namespace perigee::cache {
namespace {

// Kimi K3.1 Pro on one of `ranks`: 24 layers with latents and keys, 69 with states (FP32 recurrent part and the conv window of
// q, k and v in BF16, both cut by heads).
std::vector<LayerSpec> k31(int64_t ranks, int64_t latent, int64_t key) {
  const int64_t heads = 96 / ranks;
  std::vector<LayerSpec> layers;
  for (int64_t l = 0; l < 93; ++l) {
    LayerSpec layer;
    const bool paged = l % 4 == 3 || l == 92;
    if (paged) layer.pages = {{"latent", latent}, {"key", key}};
    if (!paged) layer.state_bytes = heads * 128 * 128 * 4 + 3 * 3 * heads * 128 * 2;
    layers.push_back(layer);
  }
  return layers;
}

// Inside a group nothing overlaps, all is aligned and nothing leaves the row; every layer has its places.
void expect_sound(const std::vector<LayerSpec>& layers, const Layout& layout) {
  ASSERT_EQ(layout.places.size(), layers.size());
  std::vector<std::vector<std::pair<int64_t, int64_t>>> taken(layout.groups.size());
  for (size_t l = 0; l < layers.size(); ++l) {
    ASSERT_EQ(layout.places[l].size(), std::max<size_t>(layers[l].pages.size(), 1));
    for (size_t k = 0; k < layout.places[l].size(); ++k) {
      const Place& p = layout.places[l][k];
      EXPECT_EQ(p.offset % kPlaceAlignment, 0);
      const int64_t need = layers[l].pages.empty()
                               ? layers[l].state_bytes
                               : layers[l].pages[k].record_bytes * layout.block_tokens / layers[l].pages[k].tokens_per_record;
      EXPECT_GE(p.bytes, need);
      EXPECT_LE(p.offset + p.bytes, layout.row_bytes);
      taken[static_cast<size_t>(p.group)].emplace_back(p.offset, p.offset + p.bytes);
    }
  }
  for (auto& group : taken) {
    std::sort(group.begin(), group.end());
    for (size_t i = 1; i < group.size(); ++i) EXPECT_LE(group[i - 1].second, group[i].first);
  }
}

TEST(Layout, PublishedRowsOfKimiK31) {
  struct Case {
    int64_t ranks, latent, key, block, row;
  };
  const Case cases[] = {{8, 576, 132, 2048, 34'799'616},  {8, 352, 132, 2048, 23'789'568},
                        {8, 352, 68, 2048, 20'643'840},   {1, 576, 132, 16384, 278'396'928},
                        {16, 576, 132, 1024, 17'399'808}};
  for (const Case& c : cases) {
    const std::vector<LayerSpec> layers = k31(c.ranks, c.latent, c.key);
    const Result<Layout> layout = plan_rows(layers);
    ASSERT_TRUE(layout.ok());
    EXPECT_EQ(layout->block_tokens, c.block);
    EXPECT_EQ(layout->row_bytes, c.row);
    EXPECT_EQ(layout->state_groups(), 3);
    for (const Group& g : layout->groups) EXPECT_EQ(g.layers.size(), g.states ? 23U : 24U);
    EXPECT_EQ(layout->token_bytes(), 24 * (c.latent + c.key));
    expect_sound(layers, *layout);
  }
}

TEST(Layout, NeighbouringLayersOfStatesGoToDifferentGroups) {
  const Result<Layout> layout = plan_rows(k31(8, 576, 132));
  ASSERT_TRUE(layout.ok());
  EXPECT_EQ(layout->groups[1].layers[0], 0);
  EXPECT_EQ(layout->groups[2].layers[0], 1);
  EXPECT_EQ(layout->groups[3].layers[0], 2);
  EXPECT_EQ(layout->groups[1].layers[1], 4);  // layer 3 has pages
}

TEST(Layout, PagesOfAllLatentsComeBeforePagesOfAllKeys) {
  const Result<Layout> layout = plan_rows(k31(8, 576, 132));
  ASSERT_TRUE(layout.ok());
  EXPECT_EQ(layout->places[3][0].offset, 0);
  EXPECT_EQ(layout->places[7][0].offset, 576 * 2048);
  EXPECT_EQ(layout->places[3][1].offset, 24 * 576 * 2048);
  EXPECT_EQ(layout->places[92][1].offset, (24 * 576 + 23 * 132) * 2048);
}

TEST(Layout, BlocksOfDifferentRanksDivideOneAnother) {
  int64_t last = 0;
  for (const int64_t ranks : {16, 8, 4, 2, 1}) {
    const Result<Layout> layout = plan_rows(k31(ranks, 576, 132));
    ASSERT_TRUE(layout.ok());
    if (last > 0) {
      EXPECT_EQ(layout->block_tokens % last, 0);
    }
    last = layout->block_tokens;
  }
}

// A cache of pooled records (DeepSeek-V4: full layers that pool 4 or 128 tokens beside windows of 128 tokens) and one with
// pooled keys (GLM-5.3-Flash: four tokens share an index key).
TEST(Layout, OtherModelsPlanAsWell) {
  std::vector<LayerSpec> v4;
  for (int l = 0; l < 61; ++l) {
    LayerSpec pooled;
    pooled.pages = {{"latent", 584, l % 2 == 0 ? 4 : 64}};
    if (l % 2 == 0) pooled.pages.push_back({"key", 68, 4});
    v4.push_back(pooled);
    LayerSpec window;
    window.pages = {{"latent", 584}};
    window.window = 128;
    v4.push_back(window);
  }
  std::vector<LayerSpec> glm;
  for (int l = 0; l < 46; ++l) glm.push_back({{{"latent", 656}, {"key", 132, 4}}, 0, 0});
  for (const std::vector<LayerSpec>& layers : {v4, glm}) {
    const Result<Layout> layout = plan_rows(layers);
    ASSERT_TRUE(layout.ok());
    EXPECT_EQ(layout->state_groups(), 0);
    expect_sound(layers, *layout);
  }
  EXPECT_EQ(plan_rows(v4)->page_groups(), 2);
  EXPECT_EQ(plan_rows(glm)->page_groups(), 1);
}

TEST(Layout, RowsOfARequestCountStatesAndBlocks) {
  const Result<Layout> layout = plan_rows(k31(8, 576, 132));
  ASSERT_TRUE(layout.ok());
  EXPECT_EQ(rows_of_request(*layout, 1), 4);
  EXPECT_EQ(rows_of_request(*layout, 2048), 4);
  EXPECT_EQ(rows_of_request(*layout, 2049), 5);
  EXPECT_EQ(rows_of_request(*layout, 1 << 20), 3 + 512);
}

TEST(Layout, AnySpecIsSound) {
  const bool holds = rc::check("random page classes and states", [] {
    std::vector<LayerSpec> layers;
    const auto n = *rc::gen::inRange<size_t>(1, 40);
    for (size_t l = 0; l < n; ++l) {
      LayerSpec layer;
      if (*rc::gen::inRange(0, 3) == 0) {
        layer.state_bytes = *rc::gen::inRange<int64_t>(1, 100'000);
      } else {
        layer.pages.resize(*rc::gen::inRange<size_t>(1, 4));
        for (PageSpec& p : layer.pages) {
          p = {"page", *rc::gen::inRange<int64_t>(1, 700), int64_t{1} << *rc::gen::inRange(0, 7)};
        }
        layer.window = *rc::gen::element<int64_t>(0, 0, 512);
      }
      layers.push_back(layer);
    }
    const Result<Layout> layout = plan_rows(layers);
    RC_ASSERT(layout.ok());
    int64_t states = 0;
    int64_t pages = 0;
    for (const Group& g : layout->groups) (g.states ? states : pages) = std::max(g.states ? states : pages, g.bytes);
    RC_ASSERT(pages == 0 || pages >= states);
    RC_ASSERT((layout->block_tokens & (layout->block_tokens - 1)) == 0);
    expect_sound(layers, *layout);
  });
  EXPECT_TRUE(holds);
}

TEST(Layout, RefusesWhatCannotBePaged) {
  EXPECT_FALSE(plan_rows({}).ok());
  EXPECT_FALSE(plan_rows({LayerSpec{}}).ok());
  EXPECT_FALSE(plan_rows({{{{"latent", 0}}, 0, 0}}).ok());
  EXPECT_FALSE(plan_rows({{{{"latent", 576, 3}}, 0, 0}}).ok());
  EXPECT_FALSE(plan_rows(k31(8, 576, 132), 96).ok());
}

}  // namespace
}  // namespace perigee::cache
