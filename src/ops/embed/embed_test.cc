#include "ops/embed/embed.h"

#include <gtest/gtest.h>

#include "ops/op_test.h"

namespace perigee::ops {
namespace {

using testing::Batch;
using testing::Rows;

TEST(Embed, CopiesRowsOnBothDevices) {
  const std::vector<bf16> table = testing::random_half(1, 5 * 3, 1.0);
  std::vector<int32_t> ids = {4, 0, 4};
  Rows<bf16> half(3, 3, 2);
  Rows<double> wide(3, 3, 1);
  const Tensor table_view = testing::view(table, {5, 3});
  embed(testing::cpu(), testing::view(ids, {3}), table_view, half.tensor());
  embed(testing::reference(), testing::view(ids, {3}), table_view, wide.tensor());
  for (size_t t = 0; t < 3; ++t) {
    for (size_t i = 0; i < 3; ++i) {
      const bf16 want = table[static_cast<size_t>(ids[t]) * 3 + i];
      EXPECT_EQ(half.dense()[t * 3 + i].bits, want.bits);
      EXPECT_EQ(wide.dense()[t * 3 + i], to_float(want));
    }
  }
}

TEST(Embed, AbortsOnForeignIds) {
  const std::vector<bf16> table(6);
  Rows<bf16> out(1, 3);
  for (const int32_t id : {-1, 2}) {
    std::vector<int32_t> ids = {id};
    EXPECT_DEATH(
        embed(testing::cpu(), testing::view(ids, {1}), testing::view(table, {2, 3}), out.tensor()),
        "CHECK failed");
  }
}

TEST(Embed, RowsAreIndependent) {
  const int64_t width = 37;
  const std::vector<bf16> table = testing::random_half(2, 50 * width, 1.0);
  testing::expect_rows_independent<bf16>(
      50, width, [&](const Context& context, const Batch& batch) {
        std::vector<int32_t> ids(batch.pick.begin(), batch.pick.end());
        const auto rows = static_cast<int64_t>(ids.size());
        Rows<bf16> out(rows, width, batch.gap);
        {
          testing::OnDevice on(context);
          embed(context, on(testing::view(ids, {rows})), on(testing::view(table, {50, width})), on(out.tensor()));
        }
        return out.dense();
      });
}

}  // namespace
}  // namespace perigee::ops
