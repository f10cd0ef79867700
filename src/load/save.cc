#include "load/save.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>

namespace perigee::load {
namespace {

std::string quoted(const std::string& text) {
  // Bytes that are no UTF-8 become U+FFFD: a name never makes a header that cannot be read back.
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

struct Close {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

Error failure(const std::string& path, const std::string& partial) {
  const int reason = errno;
  std::remove(partial.c_str());
  return io_error("cannot write {}: {}", path, std::strerror(reason));
}

}  // namespace

std::string safetensors_header(std::span<const SaveTensor> tensors,
                               std::span<const std::pair<std::string, std::string>> metadata) {
  std::string json = "{";
  if (!metadata.empty()) {
    json += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) json += quoted(key) + ":" + quoted(value) + ",";
    json.back() = '}';
    json += ',';
  }
  size_t at = 0;
  for (const SaveTensor& t : tensors) {
    json += fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":[{},{}]}},",
                        quoted(t.name), file_dtype_name(t.dtype), shape_text(t.shape), at,
                        at + t.bytes.size());
    at += t.bytes.size();
  }
  if (json.back() == ',') json.pop_back();
  json += '}';
  json.resize((json.size() + 7) / 8 * 8, ' ');
  std::string length(8, '\0');
  for (int i = 0; i < 8; ++i)
    length[static_cast<size_t>(i)] = static_cast<char>(json.size() >> (8 * i) & 0xff);
  return length + json;
}

Status save_safetensors(const std::string& path, std::span<const SaveTensor> tensors,
                        std::span<const std::pair<std::string, std::string>> metadata) {
  for (const SaveTensor& t : tensors) {
    int64_t bits = file_dtype_bits(t.dtype);
    for (const int64_t dim : t.shape) bits *= dim;
    CHECK_EQ(static_cast<size_t>(bits / 8), t.bytes.size());
  }
  const std::string partial = path + ".partial";
  const std::string header = safetensors_header(tensors, metadata);
  std::unique_ptr<std::FILE, Close> file(std::fopen(partial.c_str(), "wb"));
  if (file == nullptr) return failure(path, partial);
  if (std::fwrite(header.data(), 1, header.size(), file.get()) != header.size())
    return failure(path, partial);
  for (const SaveTensor& t : tensors) {
    if (t.bytes.empty()) continue;
    if (std::fwrite(t.bytes.data(), 1, t.bytes.size(), file.get()) != t.bytes.size())
      return failure(path, partial);
  }
  if (std::fclose(file.release()) != 0) return failure(path, partial);
  if (std::rename(partial.c_str(), path.c_str()) != 0) return failure(path, partial);
  return {};
}

}  // namespace perigee::load
