#include "serve/auth.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>

#include "serve/http_text.h"

namespace perigee::serve {
namespace {

constexpr std::string_view kBearer = "bearer ";

std::string_view trim(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

}  // namespace

Result<KeyRing> KeyRing::create(const std::vector<std::string>& keys, std::string_view flag) {
  KeyRing ring;
  for (const std::string& key : keys) {
    if (key.empty()) return invalid_argument("{}: a key must not be empty", flag);
    // Other characters cannot be sent in a header, so nobody could ever use the key.
    if (!std::all_of(key.begin(), key.end(), [](char c) { return c > ' ' && c < 0x7f; }))
      return invalid_argument("{}: a key must consist of visible ASCII characters without blanks", flag);
    ring.digests_.push_back(digest(key));
  }
  return ring;
}

KeyRing::Digest KeyRing::digest(std::string_view text) {
  Digest result{};
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), result.data());
  return result;
}

bool KeyRing::holds(const Digest& digest) const {
  // No early exit: the time must not tell which key came close.
  unsigned found = 0;
  for (const Digest& known : digests_) found |= CRYPTO_memcmp(known.data(), digest.data(), digest.size()) == 0 ? 1u : 0u;
  return found != 0;
}

std::optional<std::string> KeyRing::admit(const std::map<std::string, std::string>& headers) const {
  if (empty()) return std::string();
  std::vector<std::string_view> offered;
  if (const auto it = headers.find("authorization"); it != headers.end()) {
    const std::string_view value = it->second;
    if (value.size() > kBearer.size() && equal_ignoring_case(value.substr(0, kBearer.size()), kBearer))
      offered.push_back(trim(value.substr(kBearer.size())));
  }
  if (const auto it = headers.find("x-api-key"); it != headers.end()) offered.push_back(trim(it->second));
  for (const std::string_view key : offered) {
    const Digest given = digest(key);
    if (!holds(given)) continue;
    std::string tenant;
    for (const uint8_t byte : given) fmt::format_to(std::back_inserter(tenant), "{:02x}", byte);
    return tenant;
  }
  return std::nullopt;
}

}  // namespace perigee::serve
