// What    What the API handlers are given (options, limits, seams to other rooms) and the fields that every
//         generating request shares, as plain values.
// Owner   serve.
// Threads Plain data; hooks are called from the delivery thread, one at a time, and must be short.
// Errors  read_common() leaves them in its Fields.
// Source  OpenAI's completions requests with the additions of vLLM's server.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/backend.h"
#include "serve/api_fields.h"
#include "serve/exchange.h"
#include "serve/stop_strings.h"
#include "text/chat.h"
#include "text/constraint.h"
#include "text/tokenizer.h"

namespace perigee::serve {

// What an answer must look like. With `chat`, the kinds other than kChat hold for the text of the response channel.
struct ConstraintSpec {
  enum class Kind { kChat, kJsonSchema, kJsonObject, kRegex, kChoice, kGrammar };
  Kind kind = Kind::kChat;
  const text::ChatRequest* chat = nullptr;  // its response_format, tools and tool_choice; none: a completion
  std::string field;                        // for sentences, e.g. "structured_outputs.regex"
  text::Json schema;                        // kJsonSchema
  std::string source;                       // kRegex, kGrammar
  std::vector<std::string> choices;         // kChoice
};
using ConstraintMaker = std::function<Result<std::shared_ptr<text::Constraint>>(const ConstraintSpec&)>;

struct ApiLimits {
  int64_t choices_max = 64;    // n
  int64_t answers_max = 1024;  // n times the number of prompts
  int64_t top_logprobs_max = 20;
  size_t stops_max = 16;
  size_t stop_bytes_max = 1024;  // each
  size_t logit_bias_max = 1024;
  size_t bad_words_max = 128;
  size_t stop_ids_max = 128;
  int64_t prompt_logprob_bytes_max = 64 << 20;  // of the answer's text, estimated
  size_t word_bytes_max = 1024;                 // ids and names that a client chooses
};

struct SamplingDefaults {  // from generation_config.json
  double temperature = 1.0;
  double top_p = 1.0;
  int64_t top_k = 0;
  double min_p = 0.0;
  double repetition_penalty = 1.0;
  int64_t max_tokens = 0;  // 0: the rest of the context
};

// How a request went, for metrics and logs.
struct RequestRecord {
  std::string route;
  std::string request_id;
  std::string reason;  // of the first choice: stop, length, tool_calls, abort, error
  int64_t choices = 0;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t generated_tokens = 0;
  int64_t max_tokens = 0;
  double first_token_s = -1;  // from the request's arrival; -1: none came
  // By the engine's clock, of all choices together; -1: it did not come so far.
  double queue_s = -1;    // to the first step of any choice
  double prefill_s = -1;  // from there to the first token of any
  double decode_s = -1;   // from there to the last token of all
  double total_s = 0;
};

struct ApiOptions {
  std::vector<std::string> model_names;  // the first is echoed; at least one
  std::string fingerprint;               // system_fingerprint; empty: null
  std::vector<int32_t> end_ids;          // the model's own, besides <|end_of_msg|>
  SamplingDefaults defaults;
  ApiLimits limits;
  std::optional<uint64_t> seed;     // of requests that name none; absent: random
  bool always_usage = false;        // as if every stream asked for include_usage
  bool fixed_sampling = false;      // refuse other sampling values than Kimi's own, as its hosted API does
  int64_t created = 0;              // of the model, for /v1/models
  ConstraintMaker make_constraint;  // none: constrained decoding is not available
  // From the token before them to the latest of `tokens` tokens that one step gave to one choice, by the engine's clock.
  std::function<void(double seconds, int64_t tokens)> on_token_gap;
  std::function<void(const RequestRecord&)> on_finished;
};

struct ApiRoute {
  std::string method;
  std::string path;  // "{id}" stands for any one segment
  Handler handler;
  bool heavy = false;  // may take long before it answers (tokenising): not for a thread that serves sockets
};

// Fields shared by all generating routes.
struct CommonFields {
  engine::TokenSampling sampling;
  std::string model;
  std::string request_id;
  int64_t n = 1;
  std::optional<int64_t> max_tokens;
  std::string max_tokens_field;  // how the client spelled it
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  std::shared_ptr<const StopStrings> stops;
  std::vector<int32_t> stop_ids;
  bool include_stop = false;
  bool ignore_end = false;
  bool skip_hidden = true;
  int64_t logprobs = -1;  // alternatives per token; -1: none, not even the token's own
  int64_t prompt_logprobs = -1;
  bool return_token_ids = false;
  bool tokens_as_ids = false;
  bool return_prompt_text = false;
  int64_t truncate_prompt = -1;  // -1: not at all
  bool truncate_left = true;
  int64_t priority = 0;
  std::string session;
  std::string cache_salt;
};

enum class FieldSet { kChat, kCompletion, kTokens };

// Reads everything but the prompt, the model and who asks. `logprobs` has three spellings: a flag with top_logprobs
// (chat), a number (the others).
CommonFields read_common(Fields& fields, FieldSet set, const ApiOptions& options, const text::Tokenizer& tokenizer);
// The parts that other protocols share.
void read_stream_options(Fields& fields, const ApiOptions& options, CommonFields& out);  // out.stream is known
void read_sampling(Fields& fields, const ApiOptions& options, CommonFields& out);
void read_identity(Fields& fields, const ApiOptions& options, const HttpRequest& request, CommonFields& out);
// 404 for a model that is not served here.
void check_model(Fields& fields, const ApiOptions& options, CommonFields& out);

// A request's body as an object, or the 400; the sentence begins with the field whose value is no JSON (NaN, 1e999).
Result<text::Json> parse_body(const HttpRequest& request);

}  // namespace perigee::serve
