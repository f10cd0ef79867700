// What    One finished request as a file: what was asked, what came out to the last bit, and which model computed it.
//           DIR/<time>-<key>.json: the members below under their names; log-probabilities as the 16 hex digits of their doubles
//           ("logprob_bits"; FP32 values widen to doubles exactly), everything else as JSON numbers that read back equal.
// Owner   engine.
// Threads RequestRecord is plain data. RecordWriter::push() may be called from any thread and never waits for the disk.
// Errors  from_json() gives one sentence that names the field. Failures to write are told once and lose the record alone.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"
#include "engine/backend.h"
#include "engine/identity.h"

namespace perigee::engine {

constexpr int64_t kRecordVersion = 1;

struct RequestRecord {
  int64_t time_us = 0;  // of the last token, since 1970, UTC
  uint64_t key = 0;     // of the request, in its server
  std::string label;    // the client's request id
  ModelIdentity identity;
  int64_t vocab = 0;
  std::vector<int32_t> prompt;
  std::vector<int32_t> ids;
  std::vector<double> logprobs;  // of `ids`, of the unmodified distribution
  TokenSampling sampling;
  std::vector<int32_t> stop_ids;
  int64_t max_tokens = 0;
  RequestEnd finish = RequestEnd::kLength;  // kStop or kLength
  bool constrained = false;  // a grammar chose among the tokens; it is not recorded, so only scoring can be repeated
};

// A record of now; key, identity and vocab are left to the caller.
RequestRecord record_of(const TokenRequest& request, std::span<const int32_t> ids, std::span<const double> logprobs,
                        RequestEnd finish);

std::string to_json(const RequestRecord& record);
// `path` is for messages.
Result<RequestRecord> from_json(const std::string& text, const std::string& path);

// "20260131T235959.000001Z-17.json"
std::string record_name(const RequestRecord& record);
// Under a temporary name first, so that nobody reads half a file.
Status write_record(const std::string& folder, const RequestRecord& record);

// Whether files can be made in a folder; `flag` named it.
Status check_record_folder(const std::string& folder, const std::string& flag);

// Writes records on a thread of its own.
class RecordWriter {
 public:
  using OnFailure = std::function<void(const std::string&)>;  // called at most once
  RecordWriter(std::string folder, OnFailure on_failure);
  // Writes what is left.
  ~RecordWriter();

  // A record too many is dropped and counts as a failure: a slow disk must not fill the memory.
  void push(RequestRecord record);

 private:
  void run();
  void fail(const std::string& why);

  const std::string folder_;
  const OnFailure on_failure_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<RequestRecord> queue_;
  bool dropped_ = false;
  bool stop_ = false;
  bool told_ = false;  // the thread's own
  std::thread thread_;
};

}  // namespace perigee::engine
