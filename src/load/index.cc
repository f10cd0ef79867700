#include "load/index.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>

namespace perigee::load {
namespace {

constexpr size_t kIndexBytesMax = size_t{1} << 30;

// Reads {"metadata": anything, "weight_map": {name: shard}} event by event: a document tree of half a million
// members is slow, and would merge names that stand there twice.
class IndexReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit IndexReader(Index& index) : index_(index) {}
  const std::string& problem() const { return problem_; }
  bool has_map() const { return map_seen_; }

  bool key(string_t& text) override {
    if (depth_ == 1) {
      in_map_ = text == "weight_map";
      if (in_map_ && map_seen_) return fail("weight_map stands there twice");
      map_seen_ |= in_map_;
    } else if (in_map_) {
      name_.swap(text);
    }
    return true;
  }
  bool string(string_t& text) override {
    if (!in_map_) return scalar();
    if (depth_ != 2) return fail("weight_map is not an object");
    if (text.empty() || text.find('/') != std::string::npos || text == "." || text == "..") {
      return fail("tensor " + name_ + " names the shard \"" + text +
                  "\", which is no plain file name");
    }
    auto [it, fresh] = shards_.try_emplace(text, static_cast<uint32_t>(index_.shards.size()));
    if (fresh) index_.shards.push_back(text);
    index_.entries.push_back({name_, it->second});
    return true;
  }
  bool start_object(std::size_t) override {
    if (in_map_ && depth_ >= 2) return fail("tensor " + name_ + " names no shard");
    ++depth_;
    return true;
  }
  bool end_object() override {
    --depth_;
    if (depth_ == 1) in_map_ = false;
    return true;
  }
  bool start_array(std::size_t) override {
    if (!scalar()) return false;
    ++depth_;
    return true;
  }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool null() override { return scalar(); }
  bool boolean(bool) override { return scalar(); }
  bool number_integer(number_integer_t) override { return scalar(); }
  bool number_unsigned(number_unsigned_t) override { return scalar(); }
  bool number_float(number_float_t, const string_t&) override { return scalar(); }
  bool binary(binary_t&) override { return scalar(); }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return fail(fmt::format("no JSON at byte {}", position));
  }

 private:
  bool fail(std::string text) {
    if (problem_.empty()) problem_ = std::move(text);
    return false;
  }
  // Anything but an object at the top, or but a shard name in the map.
  bool scalar() {
    if (depth_ == 0) return fail("it is not a JSON object");
    if (!in_map_) return true;
    return depth_ == 1 ? fail("weight_map is not an object")
                       : fail("tensor " + name_ + " names no shard");
  }

  Index& index_;
  std::string problem_;
  std::string name_;
  std::unordered_map<std::string, uint32_t> shards_;
  int depth_ = 0;
  bool in_map_ = false;
  bool map_seen_ = false;
};

Status check_shards(const std::string& index_path, const Index& index,
                    const std::vector<SafetensorsFile>& files) {
  std::vector<std::vector<bool>> named;
  for (const SafetensorsFile& file : files) named.emplace_back(file.tensors().size(), false);
  for (const IndexEntry& entry : index.entries) {
    const int64_t tensor = files[entry.shard].find(entry.name);
    if (tensor < 0) {
      return not_found("{} places tensor {} in {}, which does not hold it", index_path, entry.name,
                       files[entry.shard].path());
    }
    std::vector<bool>::reference seen = named[entry.shard][static_cast<size_t>(tensor)];
    if (seen)
      return invalid_argument("{}: tensor {} stands in weight_map twice", index_path, entry.name);
    seen = true;
  }
  for (size_t i = 0; i < files.size(); ++i) {
    const auto gap = std::find(named[i].begin(), named[i].end(), false);
    if (gap == named[i].end()) continue;
    const FileTensor& t = files[i].tensors()[static_cast<size_t>(gap - named[i].begin())];
    return invalid_argument("{} holds tensor {}, which {} does not name", files[i].path(), t.name,
                            index_path);
  }
  return {};
}

}  // namespace

Result<Index> parse_index(const std::string& text, const std::string& path) {
  Index index;
  IndexReader reader(index);
  if (!nlohmann::json::sax_parse(text, &reader))
    return invalid_argument("{}: {}", path, reader.problem());
  if (!reader.has_map()) return invalid_argument("{} has no weight_map", path);
  if (index.entries.empty()) return invalid_argument("{}: weight_map names no tensor", path);
  return index;
}

Result<std::vector<SafetensorsFile>> open_checkpoint(const std::string& folder) {
  std::vector<SafetensorsFile> files;
  const std::string index_path = folder + "/" + kIndexFile;
  if (!file_exists(index_path)) {
    const std::string single = folder + "/" + kSingleFile;
    if (!file_exists(single)) {
      return not_found("{} holds neither {} nor {}; name a checkpoint folder", folder, kSingleFile,
                       kIndexFile);
    }
    Result<SafetensorsFile> file = SafetensorsFile::open(single);
    if (!file.ok()) return file.error();
    files.push_back(std::move(*file));
    return files;
  }
  const Result<std::string> text = read_file(index_path, kIndexBytesMax);
  if (!text.ok()) return text.error();
  const Result<Index> index = parse_index(*text, index_path);
  if (!index.ok()) return index.error();
  for (const std::string& shard : index->shards) {
    const std::string path = folder + "/" + shard;
    if (!file_exists(path)) {
      return not_found("{} is missing: {} places tensors in it; fetch the shard", path, index_path);
    }
    Result<SafetensorsFile> file = SafetensorsFile::open(path);
    if (!file.ok()) return file.error();
    files.push_back(std::move(*file));
  }
  if (Status s = check_shards(index_path, *index, files); !s.ok()) return s.error();
  return files;
}

}  // namespace perigee::load
