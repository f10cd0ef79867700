// What    A folder that goes away with its test, and small helpers that write broken and whole checkpoints into it.
// Owner   load; for tests only.
// Threads One test.
// Errors  Checks.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/check.h"

namespace perigee::load {

class TempFolder {
 public:
  TempFolder() {
    std::string path = (std::filesystem::temp_directory_path() / "perigee-test-XXXXXX").string();
    CHECK(::mkdtemp(path.data()) != nullptr);
    path_ = path;
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream out(file(name), std::ios::binary);
    out.write(text.data(), static_cast<std::streamsize>(text.size()));
    out.close();
    CHECK(out.good());
    return file(name);
  }

 private:
  std::string path_;
};

// The bytes of a safetensors file with this header text and this many zero bytes of data.
inline std::string raw_safetensors(const std::string& header, size_t data_bytes) {
  std::string text(8, '\0');
  for (int i = 0; i < 8; ++i)
    text[static_cast<size_t>(i)] = static_cast<char>(header.size() >> (8 * i) & 0xff);
  return text + header + std::string(data_bytes, '\0');
}

}  // namespace perigee::load
