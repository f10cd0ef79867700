// Any bytes as a safetensors file or as an index: a header that adds up, or one sentence.
#include <cstring>
#include <set>
#include <span>

#include "load/index.h"
#include "load/safetensors.h"
#include "load/save.h"

using namespace perigee;
using namespace perigee::load;

namespace {

// What the parser promises to everybody who reads tensors afterwards.
void check_header(const SafetensorsHeader& header, size_t file_size) {
  size_t at = 0;
  std::set<std::string> names;
  for (const FileTensor& t : header.tensors) {
    CHECK_EQ(t.begin, at);
    CHECK(t.end >= t.begin && names.insert(t.name).second);
    unsigned __int128 bits = static_cast<unsigned>(file_dtype_bits(t.dtype));
    for (const int64_t dim : t.shape) {
      CHECK_GE(dim, 0);
      bits *= static_cast<uint64_t>(dim);
      if (bits == 0) break;
    }
    CHECK(bits == static_cast<unsigned __int128>(t.bytes()) * 8);
    at = t.end;
  }
  CHECK_EQ(header.data_offset + at, file_size);
}

void check_reading(std::span<const std::byte> bytes) {
  const Result<SafetensorsHeader> header = parse_safetensors(bytes, bytes.size(), "fuzz");
  if (header.ok()) {
    check_header(*header, bytes.size());
  } else {
    CHECK(header.error().message.starts_with("fuzz"));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  check_reading(bytes);
  // The same bytes as a header whose length is right, so that mutations reach the JSON behind it.
  std::string text(8, '\0');
  for (int i = 0; i < 8; ++i) text[static_cast<size_t>(i)] = static_cast<char>(size >> (8 * i) & 0xff);
  text.append(reinterpret_cast<const char*>(data), size);
  for (const size_t tail : {0, 4, 64}) {
    std::string file = text;
    file.append(tail, '\0');
    check_reading(std::as_bytes(std::span(file)));
  }
  const Result<Index> index = parse_index(text.substr(8), "fuzz");
  if (!index.ok()) return 0;
  for (const IndexEntry& entry : index->entries) {
    CHECK_LT(entry.shard, index->shards.size());
    CHECK(index->shards[entry.shard].find('/') == std::string::npos);
  }
  return 0;
}
