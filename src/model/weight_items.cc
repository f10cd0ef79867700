#include "model/weight_items.h"

#include <charconv>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "base/file.h"
#include "base/rng.h"

namespace perigee::model {
namespace {

using load::FileDType;
using load::FileTensor;
using load::SafetensorsFile;

constexpr std::string_view kPrefix = "language_model.";
constexpr std::string_view kLayerPrefix = "model.layers.";

std::string_view without_prefix(std::string_view name) {
  return name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : name;
}

struct Found {
  const SafetensorsFile* file = nullptr;
  const FileTensor* tensor = nullptr;
  bool used = false;
};
using Names = std::unordered_map<std::string_view, Found>;

Result<Names> collect(const std::vector<SafetensorsFile>& files) {
  size_t total = 0;
  for (const SafetensorsFile& file : files) total += file.tensors().size();
  Names names;
  names.reserve(total);
  for (const SafetensorsFile& file : files) {
    for (const FileTensor& t : file.tensors()) {
      const auto [it, fresh] = names.try_emplace(without_prefix(t.name), Found{&file, &t});
      if (fresh) continue;
      return invalid_argument("tensor {} stands in {} and again in {}", t.name,
                              it->second.file->path(), file.path());
    }
  }
  return names;
}

// Dimensions of 1 carry nothing: [1, D] is [D], [P, 1, w] is [P, w].
std::vector<int64_t> squeezed(const std::vector<int64_t>& shape) {
  std::vector<int64_t> out;
  for (const int64_t dim : shape) {
    if (dim != 1) out.push_back(dim);
  }
  return out;
}

Status check(const TensorRow& row, const Found& found) {
  const FileTensor& t = *found.tensor;
  // Widening BF16 to F32 is exact; anything else would change the model.
  if (t.dtype != row.dtype && !(row.dtype == FileDType::kF32 && t.dtype == FileDType::kBF16)) {
    return invalid_argument("{}: tensor {} is {}, it must be {}", found.file->path(), t.name,
                            load::file_dtype_name(t.dtype), load::file_dtype_name(row.dtype));
  }
  if (row.any_shape) {
    int64_t size = 1;
    for (const int64_t dim : t.shape) size *= dim;
    if (size >= row.n) return {};
    return invalid_argument("{}: tensor {} of shape {} holds fewer than {} values",
                            found.file->path(), t.name, load::shape_text(t.shape), row.n);
  }
  if (squeezed(t.shape) == squeezed(row.dims)) return {};
  return invalid_argument("{}: tensor {} has the shape {}, config.json asks for {}",
                          found.file->path(), t.name, load::shape_text(t.shape),
                          load::shape_text(row.dims));
}

Error missing(const std::string& name, const TensorRow& row, const Names& names,
              const std::vector<SafetensorsFile>& files) {
  const std::string where =
      files.size() == 1 ? files[0].path() : files[0].path() + " and its other shards";
  constexpr std::string_view kPacked = "_packed";
  const std::string plain =
      name.ends_with(kPacked) ? name.substr(0, name.size() - kPacked.size()) : "";
  if (row.pack == Pack::kCodes && names.contains(plain)) {
    return invalid_argument(
        "{} holds tensor {} unpacked, although quantization_config says mxfp4-pack-quantized",
        names.at(plain).file->path(), plain);
  }
  if (row.pack == Pack::kMatrix && names.contains(name + "_packed")) {
    return invalid_argument(
        "{} holds tensor {}_packed, although config.json has no quantization_config",
        names.at(name + "_packed").file->path(), name);
  }
  return not_found("{} lacks tensor {}; where it has another name, say so in {}", where, name,
                   kRenamesFile);
}

// Image tower and projector are left out until the image path reads them, MTP layers stand behind the last layer.
bool left_out(std::string_view name, int64_t layers) {
  if (name.starts_with("vision_tower.") || name.starts_with("mm_projector.")) return true;
  if (!name.starts_with(kLayerPrefix)) return false;
  const std::string_view rest = name.substr(kLayerPrefix.size());
  int64_t layer = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), layer);
  return error == std::errc() && end != rest.data() + rest.size() && *end == '.' && layer >= layers;
}

}  // namespace

Result<Renames> read_renames(const std::string& folder, const std::vector<TensorRow>& table) {
  const std::string path = folder + "/" + kRenamesFile;
  Renames renames;
  if (!file_exists(path)) return renames;
  const Result<std::string> text = read_file(path, size_t{1} << 20);
  if (!text.ok()) return text.error();
  const nlohmann::json document = nlohmann::json::parse(*text, nullptr, false);
  if (!document.is_object()) return invalid_argument("{} is no JSON object of names", path);
  for (const auto& [theirs, value] : document.items()) {
    if (!value.is_string())
      return invalid_argument("{}: {} must name one of our tensors", path, theirs);
    const std::string ours(without_prefix(value.get<std::string>()));
    const auto same = [&](const TensorRow& row) { return row.name == ours; };
    if (std::none_of(table.begin(), table.end(), same)) {
      return invalid_argument("{}: {} is mapped to {}, which this model does not have", path,
                              theirs, ours);
    }
    if (!renames.try_emplace(ours, without_prefix(theirs)).second) {
      return invalid_argument("{}: two names are mapped to {}", path, ours);
    }
  }
  return renames;
}

Result<std::vector<WeightItem>> bind_items(const std::vector<TensorRow>& table,
                                           const Config& config,
                                           const std::vector<SafetensorsFile>& files,
                                           const Renames& renames) {
  Result<Names> collected = collect(files);
  if (!collected.ok()) return collected.error();
  Names& names = *collected;
  std::vector<WeightItem> items;
  items.reserve(names.size());
  for (const TensorRow& row : table) {
    const auto renamed = renames.find(row.name);
    const std::string& pattern = renamed == renames.end() ? row.name : renamed->second;
    for (int64_t expert = 0; expert < row.copies; ++expert) {
      const std::string name = expand(pattern, row.layer, expert);
      const auto it = names.find(name);
      if (it == names.end()) return missing(name, row, names, files);
      if (Status s = check(row, it->second); !s.ok()) return s.error();
      if (it->second.used && !row.alias) {
        return invalid_argument("tensor {} would fill two places of the model; correct {}", name,
                                kRenamesFile);
      }
      it->second.used = true;
      items.push_back({&row, expert, it->second.file, it->second.tensor, 0});
    }
  }
  for (const SafetensorsFile& file : files) {
    for (const FileTensor& t : file.tensors()) {
      const std::string_view name = without_prefix(t.name);
      if (names.at(name).used || left_out(name, config.layers)) continue;
      return invalid_argument(
          "{} holds tensor {}, which a {} model of this config.json does not have", file.path(),
          t.name, kind_name(config.kind));
    }
  }
  return items;
}

std::vector<WeightItem> dummy_items(const std::vector<TensorRow>& table, uint64_t seed) {
  std::vector<WeightItem> items;
  for (const TensorRow& row : table) {
    for (int64_t expert = 0; expert < row.copies; ++expert) {
      const uint64_t name = hash_name(expand(row.name, row.layer, expert));
      items.push_back({&row, expert, nullptr, nullptr, mix64(seed) ^ name});
    }
  }
  return items;
}

}  // namespace perigee::model
