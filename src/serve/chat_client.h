// What    Asks an OpenAI-compatible server: which models it has, and what a model says next in a conversation.
// Owner   serve, the client's side.
// Threads One question at a time.
// Errors  One sentence that names the server's address and repeats its own words, or says what is missing from its answer.
// Source  OpenAI's GET /v1/models and POST /v1/chat/completions; top_k and min_p are extensions that many servers have.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "serve/chat_reader.h"
#include "serve/http_client.h"

namespace perigee::serve {

struct ChatTurn {
  std::string role;
  std::string content;  // UTF-8
  std::string reasoning = {};
  std::string reasoning_field = {};  // under which name the server wants it back; empty: not at all
};

// What is not set is not sent: then the server decides.
struct ChatQuestion {
  std::string model;
  std::vector<ChatTurn> turns;
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<int64_t> top_k;
  std::optional<int64_t> max_tokens;
  std::optional<uint64_t> seed;
  bool usage = false;
};

// The body of a request for a stream.
std::string chat_body(const ChatQuestion& question);

class ChatClient {
 public:
  // `url` with or without /v1 at its end; `key` may be empty; `ca_file` as in HttpClient.
  static Result<ChatClient> create(Url url, std::string key, const std::string& ca_file);

  // `cancel` as in HttpClient::send().
  Result<std::string> first_model(int cancel) const;

  // Gives out the answer as it comes. After an error, what was given out is not the whole answer.
  using OnEvents = std::function<void(const std::vector<text::OutputEvent>&)>;
  Result<ChatAnswer> ask(const ChatQuestion& question, const OnEvents& on_events, int cancel) const;

 private:
  ChatClient(HttpClient http, std::string key) : http_(std::move(http)), key_(std::move(key)) {}
  Headers headers(const char* accepted) const;
  std::string address_of(const std::string& path) const { return http_.url().text() + path; }
  Error refusal(const std::string& path, const ClientReply& reply) const;

  HttpClient http_;
  std::string key_;
};

}  // namespace perigee::serve
