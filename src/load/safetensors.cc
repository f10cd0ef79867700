#include "load/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>

namespace perigee::load {
namespace {

struct DTypeRow {
  FileDType type;
  const char* name;
  int bits;
};
constexpr std::array<DTypeRow, 20> kDTypes = {{
    {FileDType::kBool, "BOOL", 8},      {FileDType::kU8, "U8", 8},
    {FileDType::kI8, "I8", 8},          {FileDType::kU16, "U16", 16},
    {FileDType::kI16, "I16", 16},       {FileDType::kU32, "U32", 32},
    {FileDType::kI32, "I32", 32},       {FileDType::kU64, "U64", 64},
    {FileDType::kI64, "I64", 64},       {FileDType::kF4, "F4", 4},
    {FileDType::kF6E2M3, "F6_E2M3", 6}, {FileDType::kF6E3M2, "F6_E3M2", 6},
    {FileDType::kF8E4M3, "F8_E4M3", 8}, {FileDType::kF8E5M2, "F8_E5M2", 8},
    {FileDType::kF8E8M0, "F8_E8M0", 8}, {FileDType::kF16, "F16", 16},
    {FileDType::kBF16, "BF16", 16},     {FileDType::kF32, "F32", 32},
    {FileDType::kF64, "F64", 64},       {FileDType::kC64, "C64", 64},
}};

constexpr size_t kRankMax = 32;  // more dimensions are an attack on the reader, not a tensor

// Follows the header's JSON event by event, because a document tree would silently merge tensors of one name.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderReader(std::vector<FileTensor>& tensors) : tensors_(tensors) {}
  const std::string& problem() const { return problem_; }

  bool key(string_t& text) override {
    if (depth_ == 1) {
      name_ = text;
      metadata_ = text == "__metadata__";
      if (metadata_ && metadata_seen_) return fail("__metadata__ stands there twice");
      metadata_seen_ |= metadata_;
      return true;
    }
    if (metadata_) return true;
    if (text == "dtype") return enter(Field::kDType, "dtype");
    if (text == "shape") return enter(Field::kShape, "shape");
    if (text == "data_offsets") return enter(Field::kOffsets, "data_offsets");
    return fail("tensor " + name_ + " has an unknown field " + text);
  }

  bool start_object(std::size_t) override {
    ++depth_;
    if (depth_ == 1) return true;
    if (depth_ > 2) return misplaced("an object");
    tensor_ = {};
    tensor_.name = name_;
    seen_ = 0;
    field_ = Field::kNone;
    return true;
  }

  bool end_object() override {
    if (--depth_ != 1 || metadata_) return true;
    if (seen_ != 7) return fail("tensor " + name_ + " needs dtype, shape and data_offsets");
    if (offsets_ != 2) return fail("tensor " + name_ + " needs two data_offsets");
    tensors_.push_back(std::move(tensor_));
    return true;
  }

  bool start_array(std::size_t) override {
    if (depth_ != 2 || metadata_ || in_array_ ||
        !(field_ == Field::kShape || field_ == Field::kOffsets)) {
      return misplaced("an array");
    }
    in_array_ = true;
    offsets_ = field_ == Field::kOffsets ? 0 : offsets_;
    return true;
  }
  bool end_array() override {
    in_array_ = false;
    field_ = Field::kNone;
    return true;
  }

  bool string(string_t& text) override {
    if (depth_ == 2 && metadata_) return true;
    if (depth_ != 2 || field_ != Field::kDType) return misplaced("a string");
    const std::optional<FileDType> type = file_dtype_of(text);
    if (!type) return fail("tensor " + name_ + " has the unknown dtype " + text);
    tensor_.dtype = *type;
    field_ = Field::kNone;
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (!in_array_) return misplaced("a number");
    if (field_ == Field::kShape) {
      if (value > static_cast<uint64_t>(INT64_MAX))
        return fail("tensor " + name_ + " has a dimension beyond 2^63");
      if (tensor_.shape.size() == kRankMax)
        return fail("tensor " + name_ + " has more than 32 dimensions");
      tensor_.shape.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (offsets_ == 2) return fail("tensor " + name_ + " needs two data_offsets");
    (offsets_++ == 0 ? tensor_.begin : tensor_.end) = value;
    return true;
  }
  bool number_integer(number_integer_t) override {
    return in_array_
               ? fail("tensor " + name_ + " has a negative number in its shape or data_offsets")
               : misplaced("a number");
  }
  bool number_float(number_float_t, const string_t&) override { return misplaced("a fraction"); }
  bool null() override { return misplaced("null"); }
  bool boolean(bool) override { return misplaced("a boolean"); }
  bool binary(binary_t&) override { return misplaced("binary data"); }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return fail(fmt::format("the header is not JSON at byte {} of it", position));
  }

 private:
  enum class Field { kNone, kDType, kShape, kOffsets };

  bool fail(std::string text) {
    if (problem_.empty()) problem_ = std::move(text);
    return false;
  }
  bool misplaced(const char* what) {
    if (depth_ == 0) return fail("the header is not a JSON object");
    return fail(fmt::format("{} holds {} where the format has none",
                            name_.empty() ? "the header" : name_, what));
  }
  bool enter(Field field, const char* name) {
    const unsigned bit = 1u << (static_cast<unsigned>(field) - 1);
    if ((seen_ & bit) != 0) return fail("tensor " + name_ + " has two fields " + name);
    seen_ |= bit;
    field_ = field;
    return true;
  }

  std::vector<FileTensor>& tensors_;
  std::string problem_;
  std::string name_;
  FileTensor tensor_;
  int depth_ = 0;
  bool metadata_ = false;
  bool metadata_seen_ = false;
  bool in_array_ = false;
  Field field_ = Field::kNone;
  unsigned seen_ = 0;
  int offsets_ = 0;
};

// Bytes of the shape, or nothing when they do not fit or are no whole number.
std::optional<size_t> shape_bytes(const FileTensor& t) {
  uint64_t elements = 1;
  for (const int64_t dim : t.shape) {
    if (__builtin_mul_overflow(elements, static_cast<uint64_t>(dim), &elements)) return {};
  }
  uint64_t bits = 0;
  if (__builtin_mul_overflow(elements, static_cast<uint64_t>(file_dtype_bits(t.dtype)), &bits))
    return {};
  if (bits % 8 != 0) return {};
  return bits / 8;
}

Status check_tensor(const FileTensor& t, const std::string& path) {
  if (t.begin > t.end) {
    return invalid_argument("{}: tensor {} ends at byte {}, before its begin at {}", path, t.name,
                            t.end, t.begin);
  }
  const std::optional<size_t> needed = shape_bytes(t);
  if (!needed) {
    return invalid_argument(
        "{}: tensor {} has a shape {} of {} that is no whole number of bytes or too large", path,
        t.name, shape_text(t.shape), file_dtype_name(t.dtype));
  }
  if (*needed != t.bytes()) {
    return invalid_argument("{}: tensor {} of {} {} needs {} bytes, its data_offsets hold {}", path,
                            t.name, file_dtype_name(t.dtype), shape_text(t.shape), *needed,
                            t.bytes());
  }
  return {};
}

// The tensors' bytes must cover the rest of the file once, as the format demands.
Status check_coverage(std::vector<FileTensor>& tensors, size_t data_bytes,
                      const std::string& path) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const FileTensor& a, const FileTensor& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  size_t covered = 0;
  const FileTensor* last = nullptr;
  for (const FileTensor& t : tensors) {
    if (t.begin < covered) {
      return invalid_argument("{}: tensors {} and {} overlap at byte {}", path, last->name, t.name,
                              t.begin);
    }
    if (t.begin > covered) {
      return invalid_argument("{}: bytes {} to {} before tensor {} belong to no tensor", path,
                              covered, t.begin, t.name);
    }
    covered = t.end;
    last = &t;
  }
  if (covered > data_bytes) {
    return invalid_argument(
        "{} is truncated: its header describes {} bytes of tensors, the file holds {}; "
        "fetch it again",
        path, covered, data_bytes);
  }
  if (covered < data_bytes) {
    return invalid_argument("{}: {} bytes after the last tensor belong to no tensor", path,
                            data_bytes - covered);
  }
  return {};
}

std::vector<uint32_t> sorted_by_name(const std::vector<FileTensor>& tensors) {
  std::vector<uint32_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return tensors[a].name < tensors[b].name; });
  return order;
}

}  // namespace

const char* file_dtype_name(FileDType t) {
  return kDTypes[static_cast<size_t>(t)].name;
}
int file_dtype_bits(FileDType t) {
  return kDTypes[static_cast<size_t>(t)].bits;
}

std::optional<FileDType> file_dtype_of(std::string_view name) {
  for (const DTypeRow& row : kDTypes) {
    if (name == row.name) return row.type;
  }
  return {};
}

std::string shape_text(std::span<const int64_t> shape) {
  std::string text = "[";
  for (const int64_t dim : shape) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(dim);
  }
  return text + "]";
}

Result<SafetensorsHeader> parse_safetensors(std::span<const std::byte> file_bytes, size_t file_size,
                                            const std::string& path) {
  if (file_size < 8 || file_bytes.size() < 8) {
    return invalid_argument("{} is truncated: {} bytes cannot hold a safetensors header", path,
                            file_size);
  }
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i)
    length = length << 8 | std::to_integer<uint64_t>(file_bytes[static_cast<size_t>(i)]);
  if (length > kHeaderBytesMax) {
    return invalid_argument(
        "{} claims a header of {} bytes, the format allows {}; is it a safetensors file?", path,
        length, kHeaderBytesMax);
  }
  if (length > file_size - 8 || length > file_bytes.size() - 8) {
    return invalid_argument("{} is truncated: its header needs {} bytes, the file holds {}", path,
                            length + 8, file_size);
  }
  const char* text = reinterpret_cast<const char*>(file_bytes.data()) + 8;
  if (length == 0 || text[0] != '{') {
    return invalid_argument("{}: the header is not a JSON object; is it a safetensors file?", path);
  }
  SafetensorsHeader header;
  header.data_offset = 8 + length;
  HeaderReader reader(header.tensors);
  if (!nlohmann::json::sax_parse(text, text + length, &reader)) {
    return invalid_argument("{}: {}", path, reader.problem());
  }
  for (const FileTensor& t : header.tensors) {
    if (Status s = check_tensor(t, path); !s.ok()) return s.error();
  }
  const std::vector<uint32_t> order = sorted_by_name(header.tensors);
  for (size_t i = 1; i < order.size(); ++i) {
    const std::string& name = header.tensors[order[i]].name;
    if (name == header.tensors[order[i - 1]].name) {
      return invalid_argument("{}: tensor {} stands there twice", path, name);
    }
  }
  if (Status s = check_coverage(header.tensors, file_size - header.data_offset, path); !s.ok())
    return s.error();
  return header;
}

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  Result<MappedFile> map = MappedFile::open(path);
  if (!map.ok()) return map.error();
  SafetensorsFile file;
  file.map_ = std::move(*map);
  Result<SafetensorsHeader> header =
      parse_safetensors(file.map_.bytes(), file.map_.bytes().size(), path);
  if (!header.ok()) return header.error();
  file.header_ = std::move(*header);
  file.by_name_ = sorted_by_name(file.header_.tensors);
  return file;
}

int64_t SafetensorsFile::find(std::string_view name) const {
  const auto it =
      std::lower_bound(by_name_.begin(), by_name_.end(), name,
                       [&](uint32_t i, std::string_view n) { return header_.tensors[i].name < n; });
  return it != by_name_.end() && header_.tensors[*it].name == name ? int64_t{*it} : -1;
}

}  // namespace perigee::load
