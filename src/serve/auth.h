// What    Who may call: API keys, kept and compared as SHA-256 digests only.
// Owner   serve.
// Threads Constant once made.
// Errors  create() names the flag of an empty or unusable key.
// Source  Timing of plain comparisons gave keys of other servers away: every digest is compared, in constant time.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace perigee::serve {

class KeyRing {
 public:
  KeyRing() = default;
  // `flag` is named in errors: "--api-key".
  static Result<KeyRing> create(const std::vector<std::string>& keys, std::string_view flag);

  bool empty() const { return digests_.empty(); }

  // The tenant of a request: the digest of the key in `Authorization: Bearer KEY` or `x-api-key: KEY`, in hexadecimal.
  // None: no such key here. With an empty ring everybody gets in, as the tenant "".
  std::optional<std::string> admit(const std::map<std::string, std::string>& headers) const;

 private:
  using Digest = std::array<uint8_t, 32>;
  static Digest digest(std::string_view text);
  bool holds(const Digest& digest) const;

  std::vector<Digest> digests_;
};

}  // namespace perigee::serve
