// Any bytes on a connection: requests or one sentence, and the same ones however the bytes are cut.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "serve/http_intake.h"

using namespace perigee;
using namespace perigee::serve;

namespace {

std::vector<std::string> read_all(std::string_view input, size_t step) {
  IntakeLimits limits;
  limits.head_bytes_max = 1024;
  limits.headers_max = 16;
  limits.body_bytes_max = 256;
  Intake intake(limits);
  std::vector<std::string> seen;
  std::string held;
  while (true) {
    const auto before = intake.state();
    const size_t used = intake.feed(held);
    CHECK_LE(used, held.size());
    held.erase(0, used);
    if (intake.state() == Intake::State::kBad) {
      CHECK(intake.error().status >= 400 && intake.error().status < 500);
      CHECK(!intake.error().message.empty());
      return seen;
    }
    if (intake.state() == Intake::State::kDone) {
      const HttpRequest& request = intake.request();
      CHECK_LE(request.body.size(), limits.body_bytes_max);
      CHECK(!request.path.empty());
      seen.push_back(request.method + ' ' + request.path + ' ' + request.body);
      intake.reset();
    } else if (used == 0 && intake.state() == before) {
      if (input.empty()) return seen;
      held += input.substr(0, step);
      input.remove_prefix(std::min(step, input.size()));
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  // Whether an unfinished request is known to be bad already may depend on the cuts; the finished ones before it may not.
  CHECK(read_all(input, size + 1) == read_all(input, 1 + (size > 0 ? data[0] % 7 : 0)));
  return 0;
}
