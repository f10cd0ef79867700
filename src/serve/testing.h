// What    What tests of the API share: an Api over a scripted engine, requests as text, and replies read back into
//         values.
// Owner   serve; tests only.
// Threads One test.
// Errors  A reply that is not JSON aborts.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serve/api.h"
#include "serve/recording_reply.h"
#include "serve/scripted_backend.h"
#include "text/json.h"
#include "text/testing.h"

namespace perigee::serve::testing {

using text::Json;

inline Json json_of(std::string_view text) {
  Result<Json> value = text::parse_json(text, "reply");
  if (!value.ok()) check_failed(__FILE__, __LINE__, value.error().message + ": " + std::string(text));
  return std::move(*value);
}

// A member by its path, as in "choices.0.message.content"; null when it is not there. Lives as long as `value`.
inline const Json& at(const Json& value, std::string_view path) {
  static const Json nothing;
  const Json* now = &value;
  while (!path.empty()) {
    const std::string step(path.substr(0, path.find('.')));
    path.remove_prefix(std::min(path.size(), step.size() + 1));
    if (now->is_array()) {
      const size_t index = std::stoul(step);
      if (index >= now->items().size()) return nothing;
      now = &now->items()[index];
    } else {
      now = now->find(step);
      if (now == nullptr) return nothing;
    }
  }
  return *now;
}
inline std::string text_at(const Json& value, std::string_view path) {
  const Json found = at(value, path);
  return found.is_string() ? found.as_string() : text::print_json(found);
}

// The data of each event, "[DONE]" left out; `done` tells whether it came.
inline std::vector<Json> events_of(const std::string& body, bool* done = nullptr) {
  std::vector<Json> out;
  if (done != nullptr) *done = false;
  for (size_t from = 0; from < body.size();) {
    const size_t end = body.find("\n\n", from);
    if (end == std::string::npos) check_failed(__FILE__, __LINE__, "an event without an end");
    std::string event = body.substr(from, end - from);
    from = end + 2;
    const size_t data = event.find("data: ");
    event.erase(0, data + 6);
    if (event == "[DONE]") {
      if (done != nullptr) *done = true;
    } else {
      out.push_back(json_of(event));
    }
  }
  return out;
}

inline ApiOptions default_options() {
  ApiOptions options;
  options.model_names = {"demo"};
  options.seed = 7;
  return options;
}

class ApiBench {
 public:
  explicit ApiBench(ApiOptions options = default_options())
      : backend(text::testing::demo_tokenizer().vocab_size()),
        api(std::move(options), backend, text::testing::demo_tokenizer()) {}

  // Plays the same script for every request.
  void answer(std::string_view control_text, engine::RequestEnd end = engine::RequestEnd::kStop,
              std::vector<size_t> groups = {}) {
    Script script{.ids = ids(control_text), .groups = std::move(groups), .end = end};
    backend.script = [script](const auto&, size_t) { return script; };
  }
  void answer_by_hand(std::string_view control_text) {
    Script script{.ids = ids(control_text), .by_hand = true};
    backend.script = [script](const auto&, size_t) { return script; };
  }
  static std::vector<int32_t> ids(std::string_view control_text) {
    return text::testing::demo_tokenizer().encode_control(control_text);
  }

  std::shared_ptr<RecordingReply> send(std::string_view method, std::string path, std::string body = {},
                                       HttpRequest request = {}) {
    auto reply = std::make_shared<RecordingReply>();
    request.method = method;
    request.path = path;
    request.body = std::move(body);
    if (request.id.empty()) request.id = "r1";
    for (const ApiRoute& route : api.routes()) {
      const size_t brace = route.path.find('{');
      const bool fits = brace == std::string::npos ? route.path == path : path.starts_with(route.path.substr(0, brace));
      if (route.method != method || !fits) continue;
      route.handler(request, reply);
      return reply;
    }
    check_failed(__FILE__, __LINE__, "no route for " + path);
  }
  // A POST that is answered completely.
  std::shared_ptr<RecordingReply> post(std::string path, std::string body, HttpRequest request = {}) {
    auto reply = send("POST", std::move(path), std::move(body), std::move(request));
    api.settle();
    CHECK(reply->over());
    CHECK(reply->faults().empty());
    return reply;
  }
  Json post_json(std::string path, std::string body) { return json_of(post(std::move(path), std::move(body))->body()); }

  ScriptedBackend backend;
  Api api;
};

}  // namespace perigee::serve::testing
