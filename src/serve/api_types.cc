#include "serve/api_types.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "text/utf8.h"

namespace perigee::serve {

using text::Json;

namespace {

struct Refused {
  const char* key;
  const char* why;
};

// Known to other servers and without a meaning here. Silence would let a client believe that they had an effect.
constexpr std::array kRefused = {
    Refused{"use_beam_search", "answers are sampled"},
    Refused{"best_of", "ask for n answers"},
    Refused{"logprob_token_ids", "use top_logprobs"},
    Refused{"thinking_token_budget", "use reasoning_effort or max_tokens"},
    Refused{"repetition_detection", ""},
    Refused{"routed_experts_prompt_start", ""},
    Refused{"kv_transfer_params", ""},
    Refused{"ec_transfer_params", ""},
    Refused{"vllm_xargs", ""},
    Refused{"logits_processors", "logits are edited by logit_bias, bad_words and allowed_token_ids"},
    Refused{"extra_args", ""},
    Refused{"flat_logprobs", ""},
    Refused{"guided_decoding", "use structured_outputs"},
    Refused{"guided_json", "use structured_outputs"},
    Refused{"guided_regex", "use structured_outputs"},
    Refused{"guided_choice", "use structured_outputs"},
    Refused{"guided_grammar", "use structured_outputs"},
};
constexpr std::array kRefusedInChat = {
    Refused{"echo", ""},
    Refused{"documents", ""},
    Refused{"chat_template", "the model's wire format is fixed"},
    Refused{"media_io_kwargs", "this server reads text only"},
    Refused{"mm_processor_kwargs", "this server reads text only"},
    Refused{"audio", "this server writes text only"},
    Refused{"functions", "use tools"},
    Refused{"function_call", "use tool_choice"},
    Refused{"web_search_options", "use tools"},
    Refused{"add_special_tokens", "the wire format has no such tokens"},
    Refused{"truncate_prompt_tokens", "a cut prompt would not be a conversation"},
};
constexpr std::array kRefusedInCompletions = {
    Refused{"suffix", "the model does not fill in the middle"},
    Refused{"prompt_embeds", "give text or token ids"},
};

void refuse_unsupported(Fields& fields, FieldSet set) {
  for (const Refused& one : kRefused) fields.refuse(one.key, one.why);
  if (set == FieldSet::kChat) {
    for (const Refused& one : kRefusedInChat) fields.refuse(one.key, one.why);
    if (!fields.flag("skip_special_tokens", true)) {
      fields.fail("skip_special_tokens", "cannot be false here: the server reads the markers; use return_token_ids");
    }
    const Json* modalities = fields.get("modalities");
    const bool is_text = modalities == nullptr || (modalities->is_array() && modalities->items().size() == 1 &&
                                                   modalities->items()[0] == Json::string("text"));
    if (!is_text) fields.fail("modalities", "must be [\"text\"]: this server writes text only");
  } else if (set == FieldSet::kCompletion) {
    for (const Refused& one : kRefusedInCompletions) fields.refuse(one.key, one.why);
  }
  const double length_penalty = fields.number("length_penalty", 1.0, -1e9, 1e9);
  if (length_penalty != 1.0) fields.fail("length_penalty", "is not supported: answers are sampled");
  if (fields.integer("stream_interval", 1, 1, kInt64Max) != 1) fields.fail("stream_interval", "must be 1");
}

void read_logit_bias(Fields& fields, const ApiOptions& options, int64_t vocab, CommonFields& out) {
  const Json* bias = fields.get("logit_bias");
  if (bias == nullptr || fields.failed()) return;
  if (!bias->is_object()) return fields.fail("logit_bias", "must be an object of token ids and numbers");
  if (bias->members().size() > options.limits.logit_bias_max) {
    return fields.fail("logit_bias", fmt::format("has {} members; at most {} are allowed", bias->members().size(),
                                                 options.limits.logit_bias_max));
  }
  for (const auto& [key, value] : bias->members()) {
    int64_t id = -1;
    const auto [end, problem] = std::from_chars(key.data(), key.data() + key.size(), id);
    const bool is_id = problem == std::errc() && end == key.data() + key.size() && id >= 0 && id < vocab;
    if (!is_id) return fields.fail("logit_bias", fmt::format("has a member that is no token id of 0 to {}", vocab - 1));
    if (!value.is_number() || std::abs(value.as_double()) > 100) {
      return fields.fail("logit_bias", fmt::format("must give the token id {} a number of -100 to 100", id));
    }
    out.sampling.logit_bias.emplace_back(static_cast<int32_t>(id), static_cast<float>(value.as_double()));
  }
}

// A word as it stands at the beginning of a text and after a space.
void read_bad_words(Fields& fields, const ApiOptions& options, const text::Tokenizer& tokenizer, CommonFields& out) {
  for (const std::string& word :
       fields.strings("bad_words", options.limits.bad_words_max, options.limits.word_bytes_max)) {
    for (const std::string& spelling : {word, ' ' + word}) {
      std::vector<int32_t> ids = tokenizer.encode_text(spelling);
      const auto& known = out.sampling.bad_words;
      if (std::find(known.begin(), known.end(), ids) == known.end()) out.sampling.bad_words.push_back(std::move(ids));
    }
  }
}

// -1 asks for all.
int64_t read_alternatives(Fields& fields, std::string_view key, int64_t fallback, int64_t vocab, int64_t most) {
  const int64_t count = fields.integer(key, fallback, -1, kInt64Max);
  if (fields.get(key) == nullptr || fields.failed()) return fallback;
  const int64_t wanted = count == -1 ? vocab : count;
  if (wanted <= most) return wanted;
  fields.fail(key, fmt::format("asks for {} alternatives; at most {} are allowed", wanted, most));
  return fallback;
}

void read_logprobs(Fields& fields, FieldSet set, const ApiOptions& options, int64_t vocab, CommonFields& out) {
  const int64_t most = options.limits.top_logprobs_max;
  if (set == FieldSet::kChat) {
    const bool wanted = fields.flag("logprobs", false);
    const int64_t top = read_alternatives(fields, "top_logprobs", 0, vocab, most);
    if (!wanted && fields.get("top_logprobs") != nullptr && top != 0) {
      fields.fail("top_logprobs", "needs logprobs: true");
    }
    out.logprobs = wanted ? top : -1;
  } else {
    out.logprobs = read_alternatives(fields, "logprobs", -1, vocab, most);
  }
  out.prompt_logprobs = read_alternatives(fields, "prompt_logprobs", -1, vocab, most);
  if (out.prompt_logprobs >= 0 && out.stream) fields.fail("prompt_logprobs", "cannot be given with stream: true");
}

void read_output_options(Fields& fields, FieldSet set, CommonFields& out) {
  out.include_stop = fields.flag("include_stop_str_in_output", false);
  out.ignore_end = fields.flag("ignore_eos", false);
  out.return_token_ids = fields.flag("return_token_ids", false);
  out.tokens_as_ids = fields.flag("return_tokens_as_token_ids", false);
  out.return_prompt_text = fields.flag("return_prompt_text", false);
  fields.flag("spaces_between_special_tokens", true);  // this tokenizer puts none there
  if (set == FieldSet::kChat) return;
  out.skip_hidden = fields.flag("skip_special_tokens", true);
  fields.flag("add_special_tokens", true);  // this tokenizer puts none in front
  out.truncate_prompt = fields.integer("truncate_prompt_tokens", -1, -1, kInt64Max);
  const std::string side = fields.string("truncation_side", 16, "left");
  if (side != "left" && side != "right") fields.fail("truncation_side", "must be left or right");
  out.truncate_left = side == "left";
}

}  // namespace

Result<Json> parse_body(const HttpRequest& request) {
  if (!text::is_valid_utf8(request.body)) return invalid_argument("the request body is not valid UTF-8");
  std::string field;
  Result<Json> body = text::parse_json(request.body, "the request body", text::kJsonDepthMax, &field);
  if (!body.ok() && is_field_name(field)) return invalid_argument("{} cannot be read: {}", field, body.error().message);
  if (body.ok() && !body->is_object()) {
    return invalid_argument("the request body must be a JSON object, not {}", body->kind_name());
  }
  return body;
}

void read_stream_options(Fields& fields, const ApiOptions& options, CommonFields& out) {
  out.include_usage = out.stream && options.always_usage;
  const Json* stream_options = fields.get("stream_options");
  if (stream_options == nullptr) return;
  if (!stream_options->is_object()) return fields.fail("stream_options", "must be an object");
  if (!out.stream) return fields.fail("stream_options", "needs stream: true");
  Fields inner(*stream_options, fields.name("stream_options."));
  out.include_usage = inner.flag("include_usage", out.include_usage) || out.include_usage;
  out.continuous_usage = inner.flag("continuous_usage_stats", false);
  if (inner.failed()) fields.fail(*inner.error());
}

void check_model(Fields& fields, const ApiOptions& options, CommonFields& out) {
  out.model = fields.string("model", options.limits.word_bytes_max);
  const auto& names = options.model_names;
  if (out.model.empty()) out.model = names.front();
  if (fields.failed()) return;
  if (std::find(names.begin(), names.end(), out.model) != names.end()) {
    out.model = names.front();  // answers name the model itself, whatever alias it was asked for by
    return;
  }
  ApiError error;
  error.status = 404;
  error.param = "model";
  error.code = "model_not_found";
  error.message = fmt::format("model \"{}\" is not served here; GET /v1/models names those that are", out.model);
  fields.fail(std::move(error));
}

void read_sampling(Fields& fields, const ApiOptions& options, CommonFields& out) {
  const SamplingDefaults& defaults = options.defaults;
  engine::TokenSampling& sampling = out.sampling;
  sampling.temperature = fields.number("temperature", defaults.temperature, 0, 2);
  sampling.top_p = fields.number("top_p", defaults.top_p, 0, 1);
  if (sampling.top_p == 0) fields.fail("top_p", "must be above 0");
  sampling.top_k = std::max<int64_t>(fields.integer("top_k", defaults.top_k, -1, kInt64Max), 0);
  sampling.min_p = fields.number("min_p", defaults.min_p, 0, 1);
  sampling.repetition_penalty = fields.number("repetition_penalty", defaults.repetition_penalty, 0, 1e3);
  if (sampling.repetition_penalty == 0) fields.fail("repetition_penalty", "must be above 0");
  sampling.presence_penalty = fields.number("presence_penalty", 0, -2, 2);
  sampling.frequency_penalty = fields.number("frequency_penalty", 0, -2, 2);
}

void read_identity(Fields& fields, const ApiOptions& options, const HttpRequest& request, CommonFields& out) {
  const size_t bytes_max = options.limits.word_bytes_max;
  out.request_id = fields.string("request_id", bytes_max, request.id);
  if (out.request_id.empty()) out.request_id = request.id;
  out.priority = fields.integer("priority", 0, kInt64Min, kInt64Max);
  std::string session = fields.string("session_id", bytes_max);
  for (const char* header : {"x-session-id", "x-dynamo-session-id", "x-smg-routing-key", "x-correlation-id"}) {
    const auto found = request.headers.find(header);
    if (session.empty() && found != request.headers.end()) session = found->second.substr(0, bytes_max);
  }
  if (session.empty()) session = fields.string("user", bytes_max);
  std::string salt = fields.string("cache_salt", bytes_max);
  const Json* given = fields.get("cache_salt");
  if (given != nullptr && salt.empty()) fields.fail("cache_salt", fmt::format("must have 1 to {} bytes", bytes_max));
  // Clients with different keys share neither turns nor prefixes.
  if (!request.tenant.empty()) {
    if (!session.empty()) session = request.tenant + '/' + session;
    salt = request.tenant + '/' + salt;
  }
  out.session = std::move(session);
  out.cache_salt = std::move(salt);
}

CommonFields read_common(Fields& fields, FieldSet set, const ApiOptions& options, const text::Tokenizer& tokenizer) {
  CommonFields out;
  const ApiLimits& limits = options.limits;
  const int64_t vocab = tokenizer.vocab_size();
  refuse_unsupported(fields, set);
  read_sampling(fields, options, out);
  out.stream = fields.flag("stream", false);
  read_stream_options(fields, options, out);
  out.n = fields.integer("n", 1, 1, limits.choices_max);
  // Negative seeds are as good as others: only the bits count.
  const bool has_seed = fields.get("seed") != nullptr;
  if (has_seed) out.sampling.seed = static_cast<uint64_t>(fields.integer("seed", 0, kInt64Min, kInt64Max));
  for (const char* key : {"max_tokens", "max_completion_tokens"}) {  // the later one wins
    const bool may_be_zero = set == FieldSet::kCompletion;           // to score a prompt
    if (fields.get(key) == nullptr) continue;
    out.max_tokens = fields.integer(key, 1, may_be_zero ? 0 : 1, kInt64Max);
    out.max_tokens_field = fields.name(key);
  }
  std::vector<std::string> stops = fields.strings("stop", limits.stops_max, limits.stop_bytes_max);
  if (!stops.empty()) out.stops = std::make_shared<const StopStrings>(std::move(stops));
  out.stop_ids = fields.ids("stop_token_ids", vocab, limits.stop_ids_max);
  out.sampling.min_tokens = fields.integer("min_tokens", 0, 0, kInt64Max);
  if (out.max_tokens.has_value() && out.sampling.min_tokens > *out.max_tokens) {
    fields.fail("min_tokens", "must not be above max_tokens");
  }
  read_logit_bias(fields, options, vocab, out);
  out.sampling.allowed_ids = fields.ids("allowed_token_ids", vocab, static_cast<size_t>(vocab));
  read_bad_words(fields, options, tokenizer, out);
  read_output_options(fields, set, out);
  read_logprobs(fields, set, options, vocab, out);
  return out;
}

}  // namespace perigee::serve
