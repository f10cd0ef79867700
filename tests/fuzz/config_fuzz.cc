// Any bytes as config.json: a configuration whose every count is sane, or one sentence.
#include <string>

#include "model/config.h"
#include "model/parameters.h"
#include "model/weight_table.h"

using namespace perigee;
using namespace perigee::model;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const Result<Config> config = parse_config(std::string(reinterpret_cast<const char*>(data), size), "fuzz");
  if (!config.ok()) {
    CHECK(config.error().message.starts_with("fuzz"));
    return 0;
  }
  const Config& c = *config;
  CHECK_EQ(c.count(LayerKind::kKda) + c.count(LayerKind::kMla), c.layers);
  CHECK(c.active_experts >= 1 && c.active_experts <= c.experts);
  for (const int32_t id : c.stop_ids) CHECK(id >= 0 && id < c.vocab);
  for (const TensorRow& row : weight_table(c)) {
    CHECK(row.n > 0 && row.rows_total >= row.row_offset + row.n && row.bytes() > 0);
  }
  const Inspection i = inspect(c);
  CHECK(i.parameters > 0 && i.active_parameters > 0 && i.active_parameters <= i.parameters + c.vocab * c.hidden);
  CHECK(i.bytes > 0 && i.bytes >= i.text_bytes);
  CHECK(!inspect_text(i).empty() && !inspect_json(i).empty());
  return 0;
}
