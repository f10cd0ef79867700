#include "engine/record.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstring>
#include <ctime>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/file.h"

namespace perigee::engine {
namespace {

using Json = nlohmann::json;

constexpr size_t kQueueMax = 4096;  // records that wait for the disk
constexpr int64_t kCountMax = int64_t{1} << 40;

std::string bits_of(double x) { return fmt::format("{:016x}", std::bit_cast<uint64_t>(x)); }

// Reads the fields of one object; after the first fault every further field is left at its default.
class Fields {
 public:
  Fields(const Json& object, std::string path) : object_(object), path_(std::move(path)) {}

  const std::optional<Error>& fault() const { return fault_; }

  template <class... Args>
  void fail(fmt::format_string<Args...> text, Args&&... args) {
    if (!fault_) fault_ = invalid_argument("{}: {}", path_, fmt::format(text, std::forward<Args>(args)...));
  }

  const Json* get(const char* name) {
    if (fault_) return nullptr;
    const auto found = object_.find(name);
    if (found == object_.end()) fail("field {} is missing", name);
    return fault_ ? nullptr : &*found;
  }
  std::string text(const char* name) {
    const Json* v = get(name);
    if (v != nullptr && !v->is_string()) fail("field {} must be a string", name);
    return fault_ ? std::string() : v->get<std::string>();
  }
  std::string word(const char* name, std::initializer_list<const char*> allowed) {
    std::string value = text(name);
    if (!fault_ && std::find(allowed.begin(), allowed.end(), value) == allowed.end()) {
      fail("field {} is '{}'; use {}", name, value, fmt::join(allowed, ", "));
    }
    return value;
  }
  bool flag(const char* name) {
    const Json* v = get(name);
    if (v != nullptr && !v->is_boolean()) fail("field {} must be true or false", name);
    return !fault_ && v->get<bool>();
  }
  int64_t integer(const char* name, int64_t low, int64_t high) {
    const Json* v = get(name);
    if (v == nullptr) return 0;
    const bool fits = v->is_number_unsigned() ? v->get<uint64_t>() <= uint64_t{1} << 62 : v->is_number_integer();
    const int64_t value = fits ? v->get<int64_t>() : 0;
    if (!fits || value < low || value > high) fail("field {} must be an integer from {} to {}", name, low, high);
    return fault_ ? 0 : value;
  }
  uint64_t natural(const char* name) {
    const Json* v = get(name);
    if (v != nullptr && !v->is_number_unsigned()) fail("field {} must be an integer from 0 to 2^64 - 1", name);
    return fault_ ? 0 : v->get<uint64_t>();
  }
  // NaN fails as well.
  double real(const char* name, double low, double high) {
    const Json* v = get(name);
    if (v == nullptr) return 0;
    const double value = v->is_number() ? v->get<double>() : std::numeric_limits<double>::quiet_NaN();
    if (!(value >= low && value <= high)) fail("field {} must be a number from {} to {}", name, low, high);
    return value;
  }
  const Json& array(const char* name) {
    static const Json none = Json::array();
    const Json* v = get(name);
    if (v != nullptr && !v->is_array()) fail("field {} must be an array", name);
    return fault_ ? none : *v;
  }
  int32_t id(const Json& v, const char* name, size_t index, int64_t vocab) {
    const bool fits = v.is_number_unsigned() && v.get<uint64_t>() < static_cast<uint64_t>(vocab);
    if (!fits) fail("field {}: entry {} is no token id below the vocabulary of {}", name, index, vocab);
    return fits ? static_cast<int32_t>(v.get<uint64_t>()) : 0;
  }
  std::vector<int32_t> ids(const Json& list, const char* name, int64_t vocab) {
    std::vector<int32_t> out;
    for (size_t i = 0; i < list.size() && !fault_; ++i) out.push_back(id(list[i], name, i, vocab));
    return out;
  }
  std::vector<int32_t> ids(const char* name, int64_t vocab) { return ids(array(name), name, vocab); }

 private:
  const Json& object_;
  std::string path_;
  std::optional<Error> fault_;
};

std::vector<double> read_bits(Fields& f, const char* name) {
  std::vector<double> out;
  const Json& list = f.array(name);
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string digits = list[i].is_string() ? list[i].get<std::string>() : std::string();
    uint64_t bits = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), bits, 16);
    if (digits.size() != 16 || error != std::errc() || end != digits.data() + digits.size()) {
      f.fail("field {}: entry {} is no string of 16 hex digits", name, i);
      break;
    }
    out.push_back(std::bit_cast<double>(bits));
  }
  return out;
}

Json sampling_json(const TokenSampling& s) {
  return {{"temperature", s.temperature},
          {"top_p", s.top_p},
          {"min_p", s.min_p},
          {"top_k", s.top_k},
          {"seed", s.seed},
          {"choice", s.choice},
          {"repetition_penalty", s.repetition_penalty},
          {"presence_penalty", s.presence_penalty},
          {"frequency_penalty", s.frequency_penalty},
          {"logit_bias", s.logit_bias},
          {"allowed_ids", s.allowed_ids},
          {"bad_words", s.bad_words},
          {"min_tokens", s.min_tokens}};
}

TokenSampling read_sampling(Fields& f, int64_t vocab) {
  constexpr double kMost = std::numeric_limits<float>::max();
  TokenSampling s;
  s.temperature = f.real("temperature", 0, kMost);
  s.top_p = f.real("top_p", 0, kMost);
  s.min_p = f.real("min_p", 0, kMost);
  s.top_k = f.integer("top_k", 0, kCountMax);
  s.seed = f.natural("seed");
  s.choice = f.integer("choice", 0, kCountMax);
  s.repetition_penalty = f.real("repetition_penalty", -kMost, kMost);
  s.presence_penalty = f.real("presence_penalty", -kMost, kMost);
  s.frequency_penalty = f.real("frequency_penalty", -kMost, kMost);
  const Json& biases = f.array("logit_bias");
  for (size_t i = 0; i < biases.size() && !f.fault(); ++i) {
    const Json& b = biases[i];
    if (!b.is_array() || b.size() != 2 || !b[1].is_number() || !(std::abs(b[1].get<double>()) <= kMost)) {
      f.fail("field logit_bias: entry {} is no pair of a token id and a number", i);
      break;
    }
    s.logit_bias.emplace_back(f.id(b[0], "logit_bias", i, vocab), b[1].get<float>());
  }
  s.allowed_ids = f.ids("allowed_ids", vocab);
  const Json& words = f.array("bad_words");
  for (size_t i = 0; i < words.size() && !f.fault(); ++i) {
    if (!words[i].is_array() || words[i].empty()) f.fail("field bad_words: entry {} is no array of token ids", i);
    if (!f.fault()) s.bad_words.push_back(f.ids(words[i], "bad_words", vocab));
  }
  s.min_tokens = f.integer("min_tokens", 0, kCountMax);
  return s;
}

void read_identity(Fields& f, ModelIdentity& id) {
  id.model = f.text("model");
  id.device = f.word("device", {"cpu", "cuda", "reference"});
  id.latent_format = f.word("latent_format", {"f64", "bf16", "fp8", "nvfp4"});
  id.key_format = f.word("key_format", {"f64", "bf16", "fp8", "mxfp4"});
  id.weights = f.text("weights_sha256");
  id.numerics = f.text("numerics");
}

}  // namespace

RequestRecord record_of(const TokenRequest& r, std::span<const int32_t> ids, std::span<const double> logprobs,
                        RequestEnd finish) {
  RequestRecord out;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  out.time_us = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
  out.label = r.label;
  out.prompt = r.prompt;
  out.ids.assign(ids.begin(), ids.end());
  out.logprobs.assign(logprobs.begin(), logprobs.end());
  out.sampling = r.sampling;
  out.stop_ids = r.stop_ids;
  out.max_tokens = r.max_tokens;
  out.finish = finish;
  out.constrained = r.constraint != nullptr;
  return out;
}

std::string to_json(const RequestRecord& r) {
  std::vector<std::string> bits;
  for (const double x : r.logprobs) bits.push_back(bits_of(x));
  const Json json = {{"perigee_record", kRecordVersion},
                     {"time_us", r.time_us},
                     {"key", r.key},
                     {"label", r.label},
                     {"model", r.identity.model},
                     {"device", r.identity.device},
                     {"latent_format", r.identity.latent_format},
                     {"key_format", r.identity.key_format},
                     {"weights_sha256", r.identity.weights},
                     {"numerics", r.identity.numerics},
                     {"vocab", r.vocab},
                     {"prompt_ids", r.prompt},
                     {"ids", r.ids},
                     {"logprob_bits", bits},
                     {"sampling", sampling_json(r.sampling)},
                     {"stop_ids", r.stop_ids},
                     {"max_tokens", r.max_tokens},
                     {"finish", r.finish == RequestEnd::kStop ? "stop" : "length"},
                     {"constrained", r.constrained}};
  // A label or path may hold any bytes; what is no UTF-8 becomes a replacement character.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<RequestRecord> from_json(const std::string& text, const std::string& path) {
  const Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded()) return invalid_argument("{} is no JSON, or its end is missing", path);
  if (!json.is_object()) return invalid_argument("{} is no record: an object is needed", path);
  Fields f(json, path);
  if (!json.contains("perigee_record")) return invalid_argument("{} is no record: field perigee_record is missing", path);
  if (json["perigee_record"] != kRecordVersion) {
    return invalid_argument("{}: field perigee_record is {}; this program reads records of version {}", path,
                            json["perigee_record"].dump(-1, ' ', true, Json::error_handler_t::replace), kRecordVersion);
  }
  RequestRecord r;
  r.time_us = f.integer("time_us", 0, std::numeric_limits<int64_t>::max() / 2);
  r.key = f.natural("key");
  r.label = f.text("label");
  read_identity(f, r.identity);
  r.vocab = f.integer("vocab", 1, std::numeric_limits<int32_t>::max());
  r.prompt = f.ids("prompt_ids", r.vocab);
  r.ids = f.ids("ids", r.vocab);
  r.logprobs = read_bits(f, "logprob_bits");
  r.stop_ids = f.ids("stop_ids", r.vocab);
  r.max_tokens = f.integer("max_tokens", 1, kCountMax);
  r.finish = f.word("finish", {"stop", "length"}) == "stop" ? RequestEnd::kStop : RequestEnd::kLength;
  r.constrained = f.flag("constrained");
  const Json* sampling = f.get("sampling");
  if (sampling != nullptr && !sampling->is_object()) f.fail("field sampling must be an object");
  if (f.fault()) return *f.fault();
  Fields wishes(*sampling, path + ", sampling");
  r.sampling = read_sampling(wishes, r.vocab);
  if (wishes.fault()) return *wishes.fault();
  if (r.prompt.empty()) f.fail("field prompt_ids is empty");
  if (r.ids.empty()) f.fail("field ids is empty");
  if (r.logprobs.size() != r.ids.size()) {
    f.fail("field logprob_bits has {} entries, field ids has {}", r.logprobs.size(), r.ids.size());
  }
  if (static_cast<int64_t>(r.ids.size()) > r.max_tokens) {
    f.fail("field ids has {} entries, max_tokens is {}", r.ids.size(), r.max_tokens);
  }
  if (f.fault()) return *f.fault();
  return r;
}

std::string record_name(const RequestRecord& r) {
  const auto seconds = static_cast<std::time_t>(r.time_us / 1'000'000);
  std::tm parts = {};
  gmtime_r(&seconds, &parts);
  char text[32] = {};
  std::strftime(text, sizeof(text), "%Y%m%dT%H%M%S", &parts);
  return fmt::format("{}.{:06}Z-{}.json", text, r.time_us % 1'000'000, r.key);
}

Status write_record(const std::string& folder, const RequestRecord& record) {
  return write_file(fmt::format("{}/{}", folder, record_name(record)), to_json(record));
}

Status check_record_folder(const std::string& folder, const std::string& flag) {
  struct stat info = {};
  if (::stat(folder.c_str(), &info) != 0) {
    return invalid_argument("{} {}: {}; give a folder that exists", flag, folder, std::strerror(errno));
  }
  if (!S_ISDIR(info.st_mode)) return invalid_argument("{} {} is no folder", flag, folder);
  if (::access(folder.c_str(), W_OK | X_OK) != 0) {
    return invalid_argument("{} {}: no file can be written there: {}", flag, folder, std::strerror(errno));
  }
  return {};
}

RecordWriter::RecordWriter(std::string folder, OnFailure on_failure)
    : folder_(std::move(folder)), on_failure_(std::move(on_failure)), thread_([this] { run(); }) {}

RecordWriter::~RecordWriter() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void RecordWriter::push(RequestRecord record) {
  {
    std::lock_guard lock(mutex_);
    if (queue_.size() < kQueueMax) {
      queue_.push_back(std::move(record));
    } else {
      dropped_ = true;
    }
  }
  wake_.notify_all();
}

void RecordWriter::fail(const std::string& why) {
  if (told_) return;
  told_ = true;
  if (on_failure_) on_failure_(why);
}

void RecordWriter::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stop_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const RequestRecord record = std::move(queue_.front());
    queue_.pop_front();
    const bool dropped = dropped_;
    lock.unlock();
    if (dropped) fail(fmt::format("{} takes records too slowly, some are lost", folder_));
    const Status written = write_record(folder_, record);
    if (!written.ok()) fail(written.error().message);
    lock.lock();
  }
}

}  // namespace perigee::engine
