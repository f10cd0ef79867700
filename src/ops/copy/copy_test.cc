#include "ops/copy/copy.h"

#include <gtest/gtest.h>

#include <vector>

namespace perigee::ops {
namespace {

TEST(Copy, MovesRectanglesAndLeavesNeighboursAlone) {
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    const Context context = make_context(tensor::Device::kCpu, &pool);
    std::vector<float> from(5 * 8);
    for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<float>(i);
    std::vector<float> to(5 * 6, -1.0f);
    const tensor::Tensor x = tensor::view(from.data(), {5, 8});
    const tensor::Tensor out = tensor::view(to.data(), {5, 6});
    const CopyItem items[] = {{x.columns(2, 3), out.columns(0, 3)}, {x.columns(7, 1), out.columns(5, 1)}};
    copy(context, items);
    for (int64_t t = 0; t < 5; ++t) {
      for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(out.row<float>(t)[i], static_cast<float>(t * 8 + 2 + i));
      EXPECT_EQ(out.row<float>(t)[3], -1.0f);
      EXPECT_EQ(out.row<float>(t)[5], static_cast<float>(t * 8 + 7));
    }
  }
}

}  // namespace
}  // namespace perigee::ops
