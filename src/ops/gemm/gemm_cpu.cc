#include "ops/gemm/gemm_driver.h"

namespace perigee::ops::cpu {

void gemm_batched(const Context& context, std::span<const GemmItem> items) {
  std::vector<RowItem> rows;
  for (const GemmItem& item : items) {
    rows.push_back({item.x, nullptr, item.x.rows(), item.w, item.out});
  }
  multiply<Bf16Panels>(context, rows);
}

}  // namespace perigee::ops::cpu
