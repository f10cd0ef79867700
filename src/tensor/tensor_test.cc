#include <gtest/gtest.h>

#include <fstream>
#include <vector>

#include "tensor/arena.h"
#include "tensor/page_view.h"
#include "tensor/tensor.h"

namespace perigee::tensor {
namespace {

TEST(Tensor, SlicesColumnsAndReshapesKeepStrides) {
  std::vector<float> data(24);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(i);
  const Tensor t = view(data.data(), {4, 6});
  EXPECT_EQ(t.columns(2, 3).row<float>(1)[0], 8.0f);
  EXPECT_EQ(t.columns(2, 3).row_stride, 6);
  EXPECT_EQ(t.slice(2, 2).as<float>()[0], 12.0f);
  EXPECT_EQ(t.reshape({4, 2, 3}).row<float>(3)[0], 18.0f);
  EXPECT_EQ(t.columns(0, 4).reshape({4, 2, 2}).row_stride, 6);
  EXPECT_DEATH(t.columns(0, 4).reshape({8, 2}), "row_stride == row_size");
  EXPECT_DEATH(t.as<bf16>(), "");
}

TEST(Tensor, ExpectNamesTheTensorAndBothShapes) {
  std::vector<float> data(6);
  const Tensor t = view(data.data(), {2, 3});
  expect(t, "x", DType::kF32, {-1, 3});
  EXPECT_DEATH(expect(t, "query", DType::kF32, {2, 4}), "query is F32 \\[2, 3\\], the contract says F32 \\[2, 4\\]");
}

TEST(Arena, HandsOutAlignedPiecesAndFreezes) {
  Result<Arena> arena = Arena::create(1000, "test");
  ASSERT_TRUE(arena.ok());
  const std::byte* a = arena->allocate(10);
  const std::byte* b = arena->allocate(10);
  EXPECT_EQ(b - a, 64);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a) % kAlignment, 0u);
  EXPECT_EQ(arena->freeze(), 128u);
  EXPECT_DEATH(arena->allocate(1), "frozen");
}

int64_t resident_pages() {
  std::ifstream statm("/proc/self/statm");
  int64_t size = 0;
  int64_t resident = 0;
  statm >> size >> resident;
  return resident;
}

TEST(Arena, PrefaultTakesTheMemoryAtOnceAndChangesNothing) {
  constexpr size_t kBytes = size_t{64} << 20;
  Arena arena = std::move(Arena::create(kBytes, "the test")).value();
  std::byte* const data = arena.allocate(kBytes);
  data[kBytes / 2] = std::byte{7};
  const int64_t before = resident_pages();
  arena.prefault();
  EXPECT_GE((resident_pages() - before) * 4096, static_cast<int64_t>(kBytes) * 9 / 10);
  EXPECT_EQ(data[kBytes / 2], std::byte{7});
  EXPECT_EQ(data[kBytes - 1], std::byte{0});
  Arena().prefault();
}

TEST(Arena, RefusesMoreThanTheMachineHas) {
  const Result<Arena> arena = Arena::create(size_t{1} << 60, "weights");
  ASSERT_FALSE(arena.ok());
  EXPECT_NE(arena.error().message.find("weights needs"), std::string::npos);
}

TEST(PageView, AddressesAcrossBlocksAndBeyondFourGiB) {
  const int32_t rows[] = {3, 1, 70000};
  PageView v;
  v.base = reinterpret_cast<std::byte*>(uintptr_t{4096});
  v.row_bytes = int64_t{1} << 20;
  v.rows = rows;
  v.block_tokens = 128;
  v.token_bytes = 576;
  EXPECT_EQ(v.page(0) - v.base, 3 * v.row_bytes);
  EXPECT_EQ(v.page(63), v.page(0));
  EXPECT_EQ(v.page(64) - v.page(0), 64 * 576);
  EXPECT_EQ(v.page(128) - v.base, v.row_bytes);
  EXPECT_EQ(v.page(256) - v.base, 70000 * v.row_bytes);
}

}  // namespace
}  // namespace perigee::tensor
