#include "engine/identity.h"

#include <openssl/evp.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "load/index.h"

namespace perigee::engine {
namespace {

constexpr size_t kPieceBytes = size_t{16} << 10;
constexpr size_t kPieces = 4;

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
    CHECK(context_ != nullptr);
    CHECK_EQ(EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr), 1);
  }
  void add(const void* data, size_t size) { CHECK_EQ(EVP_DigestUpdate(context_.get(), data, size), 1); }
  // The length first, so that no two lists of strings give the same bytes.
  void add_text(const std::string& text) {
    const uint64_t size = text.size();
    add(&size, sizeof(size));
    add(text.data(), text.size());
  }
  std::string hex() {
    unsigned char bytes[EVP_MAX_MD_SIZE] = {};
    unsigned int size = 0;
    CHECK_EQ(EVP_DigestFinal_ex(context_.get(), bytes, &size), 1);
    std::string out;
    for (unsigned int i = 0; i < size; ++i) out += fmt::format("{:02x}", bytes[i]);
    return out;
  }

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

void add_bytes(Sha256& hash, std::span<const std::byte> bytes, bool whole) {
  if (whole || bytes.size() <= kPieces * kPieceBytes) {
    hash.add(bytes.data(), bytes.size());
    return;
  }
  for (size_t i = 0; i < kPieces; ++i) {
    hash.add(bytes.data() + (bytes.size() - kPieceBytes) / (kPieces - 1) * i, kPieceBytes);
  }
}

const char* device_name(tensor::Device d) {
  switch (d) {
    case tensor::Device::kReference: return "reference";
    case tensor::Device::kCpu: return "cpu";
    case tensor::Device::kCuda: return "cuda";
  }
  return "";
}

}  // namespace

Result<std::string> weights_digest(const std::string& folder, const model::LoadOptions& load, uint64_t whole_bytes_max) {
  Sha256 hash;
  const Result<std::string> config = read_file(folder + "/config.json");
  if (!config.ok()) return config.error();
  hash.add_text(*config);
  if (load.source == model::LoadOptions::Source::kDummy) {
    hash.add_text(fmt::format("dummy weights of seed {}", load.seed));
    return hash.hex();
  }
  Result<std::vector<load::SafetensorsFile>> opened = load::open_checkpoint(folder);
  if (!opened.ok()) return opened.error();
  std::vector<load::SafetensorsFile>& files = *opened;
  std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) { return a.path() < b.path(); });
  uint64_t total = 0;
  for (const load::SafetensorsFile& f : files) {
    for (const load::FileTensor& t : f.tensors()) total += t.bytes();
  }
  for (const load::SafetensorsFile& f : files) {
    hash.add_text(std::filesystem::path(f.path()).filename());
    for (const load::FileTensor& t : f.tensors()) {
      hash.add_text(t.name);
      hash.add_text(fmt::format("{} {} {} {}", load::file_dtype_name(t.dtype), load::shape_text(t.shape), t.begin, t.end));
      add_bytes(hash, f.bytes(t), total <= whole_bytes_max);
      f.drop(f.position(t), f.position(t) + t.bytes());
    }
  }
  return hash.hex();
}

Result<ModelIdentity> identify(const Engine& engine) {
  const EngineOptions& o = engine.options();
  Result<std::string> weights = weights_digest(o.model, o.load);
  if (!weights.ok()) return weights.error();
  std::error_code ignored;  // then the path stays as it was given
  const std::filesystem::path folder = std::filesystem::absolute(o.model, ignored);
  ModelIdentity id;
  id.model = folder.empty() ? o.model : folder.lexically_normal().string();
  id.device = device_name(engine.device());
  id.latent_format = format_name(engine.formats().latent);
  id.key_format = format_name(engine.formats().key);
  id.weights = std::move(*weights);
  id.numerics = fmt::format("{}/{}", id.device, kArithmetic);
  return id;
}

Status check_same(const ModelIdentity& recorded, const ModelIdentity& now, const std::string& what) {
  const auto differ = [&](const char* name, const std::string& a, const std::string& b) -> Status {
    if (a == b) return {};
    return invalid_argument("{} was made with {} {}, this run has {}; --force replays it all the same", what, name, a, b);
  };
  for (const Status& s : {differ("device", recorded.device, now.device),
                          differ("latent format", recorded.latent_format, now.latent_format),
                          differ("index key format", recorded.key_format, now.key_format),
                          differ("numerics", recorded.numerics, now.numerics),
                          differ("weights of digest", recorded.weights, now.weights)}) {
    if (!s.ok()) return s;
  }
  return {};
}

}  // namespace perigee::engine
