// The parts of the server that need no sockets.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "serve/errors.h"
#include "serve/health.h"
#include "serve/http_intake.h"
#include "serve/http_text.h"
#include "serve/metrics.h"
#include "serve/outbox.h"
#include "serve/routes.h"
#include "serve/server.h"
#include "text/json.h"

namespace perigee::serve {
namespace {

TEST(HttpText, Targets) {
  const auto target = parse_target("/a%2fb/c?x=1%202&y=a+b&x=3&z&=q&&t=%C3%A4#part");
  ASSERT_TRUE(target.has_value());
  EXPECT_EQ(target->path, "/a/b/c");
  const std::map<std::string, std::string> query = {{"x", "3"}, {"y", "a b"}, {"z", ""}, {"", "q"}, {"t", "\xc3\xa4"}};
  EXPECT_EQ(target->query, query);
  EXPECT_EQ(parse_target("http://host:8/p?q=1")->path, "/p");
  EXPECT_EQ(parse_target("HTTPS://host")->path, "/");
  for (const char* bad : {"", "a", "/%", "/%4", "/%4g", "/%00", "/?a=%", "ftp://x/"}) EXPECT_FALSE(parse_target(bad)) << bad;
}

TEST(HttpText, HeadersCannotBeAdded) {
  std::string out;
  append_header(out, "X", "a\r\nSet-Cookie: b\x7f");
  EXPECT_EQ(out, "X: a  Set-Cookie: b \r\n");
  EXPECT_FALSE(is_request_id("a\nb"));
  EXPECT_FALSE(is_request_id(std::string(129, 'a')));
  EXPECT_TRUE(is_request_id("0f-A_9:/="));
}

TEST(HttpRoutes, WholePathsComeBeforePatterns) {
  const Handler none = [](const HttpRequest&, const std::shared_ptr<Reply>&) {};
  const RouteTable table({{"GET", "/r/{id}", none}, {"POST", "/r/{id}/cancel", none}, {"GET", "/r/all", none}});
  EXPECT_EQ(table.find("GET", "/r/7").route->path, "/r/{id}");
  EXPECT_EQ(table.find("GET", "/r/all").route->path, "/r/all");
  EXPECT_EQ(table.find("HEAD", "/r/all").route->path, "/r/all");
  EXPECT_EQ(table.find("POST", "/r/7/cancel").route->path, "/r/{id}/cancel");
  EXPECT_EQ(table.find("PUT", "/r/7/cancel").allow, "POST, OPTIONS");
  for (const char* path : {"/r", "/r/", "/r/7/", "/r/7/cancel/x", "r/7", "", "*"})
    EXPECT_TRUE(table.find("GET", path).allow.empty()) << path;
}

TEST(HttpIntake, FieldsAfterTheBodyAreNoHeaders) {
  Intake intake{IntakeLimits{}};
  const std::string text =
      "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nx-api-key: stolen\r\nHost: y\r\n\r\n";
  for (size_t used = 0; intake.state() != Intake::State::kDone; used += intake.feed(std::string_view(text).substr(used))) {
    ASSERT_NE(intake.state(), Intake::State::kBad);
  }
  EXPECT_EQ(intake.request().body, "a");
  EXPECT_EQ(intake.request().headers, (std::map<std::string, std::string>{{"host", "x"}, {"transfer-encoding", "chunked"}}));
}

// However the bytes are cut, the requests are the same.
RC_GTEST_PROP(HttpIntake, CutsDoNotMatter, ()) {
  const auto bodies = *rc::gen::container<std::vector<std::string>>(rc::gen::container<std::string>(rc::gen::arbitrary<char>()));
  std::string text;
  for (const std::string& body : bodies) {
    text += "POST /p?n=" + std::to_string(body.size()) + " HTTP/1.1\r\nHost: x\r\n";
    if (body.size() % 2 == 0) {
      text += "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
    } else {
      text += "Transfer-Encoding: chunked\r\n\r\n";
      append_chunk(text, std::string_view(body).substr(0, body.size() / 2));
      append_chunk(text, std::string_view(body).substr(body.size() / 2));
      text += kLastChunk;
    }
  }
  Intake intake{IntakeLimits{}};
  std::string held;
  size_t seen = 0;
  while (!text.empty()) {
    const auto cut = *rc::gen::inRange<size_t>(1, 40);
    held += text.substr(0, cut);
    text.erase(0, cut);
    while (true) {
      const auto before = intake.state();
      const size_t used = intake.feed(held);
      held.erase(0, used);
      RC_ASSERT(intake.state() != Intake::State::kBad);
      if (intake.state() == Intake::State::kDone) {
        RC_ASSERT(seen < bodies.size());
        RC_ASSERT(intake.request().body == bodies[seen]);
        RC_ASSERT(intake.request().query.at("n") == std::to_string(bodies[seen].size()));
        ++seen;
        intake.reset();
      } else if (used == 0 && intake.state() == before) {
        break;
      }
    }
  }
  RC_ASSERT(seen == bodies.size());
  RC_ASSERT(held.empty());
}

RC_GTEST_PROP(HttpIntake, NoiseIsRefusedOrWaitedFor, ()) {
  auto noise = *rc::gen::container<std::string>(rc::gen::arbitrary<char>());
  const auto start = *rc::gen::element<std::string>("", "GET ", "GET / HTTP/1.1\r\n",
                                                   "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
  noise = start + noise;
  Intake intake{IntakeLimits{}};
  for (int i = 0; i < 1000 && intake.state() != Intake::State::kBad; ++i) {
    const size_t used = intake.feed(noise);
    RC_ASSERT(used <= noise.size());
    noise.erase(0, used);
    if (intake.state() == Intake::State::kDone) intake.reset();
  }
}

TEST(HttpOutbox, ACallbackMayHoldTheReplyItself) {
  auto waker = std::make_shared<Waker>([] {});
  auto outbox = std::make_shared<Outbox>(ReplyTerms{}, waker, 1);
  auto reply = std::make_shared<HttpReply>(outbox);
  reply->on_disconnect([reply] {});
  reply->send(200, "text/plain", "x", {});
  reply.reset();  // the callback was let go with the answer, and took the last hold along
  EXPECT_EQ(outbox.use_count(), 1);
}

TEST(HttpOutbox, AskingAfterThePeerHasLeftAnswersAtOnce) {
  auto outbox = std::make_shared<Outbox>(ReplyTerms{}, std::make_shared<Waker>([] {}), 1);
  HttpReply reply(outbox);
  outbox->peer_gone();
  int called = 0;
  reply.on_disconnect([&] { ++called; });
  EXPECT_EQ(called, 1);
  reply.begin(200, "text/plain", {});  // into the void
  reply.write("x");
  reply.end();
  std::vector<std::string> pieces;
  outbox->take(pieces);
  EXPECT_TRUE(pieces.empty());
}

TEST(HttpOutbox, TheBoundHoldsAndTheCallbackComesFromTheSocketsThread) {
  ReplyTerms terms;
  terms.queue_bytes_max = 1000;
  auto outbox = std::make_shared<Outbox>(terms, std::make_shared<Waker>([] {}), 1);
  HttpReply reply(outbox);
  int called = 0;
  reply.on_disconnect([&] { ++called; });
  reply.begin(200, "text/event-stream", {});
  for (int i = 0; i < 1000; ++i) reply.write(std::string(100, 'x'));
  EXPECT_TRUE(outbox->cut());
  EXPECT_LT(outbox->bytes(), 1500u);
  EXPECT_EQ(called, 0);
  outbox->peer_gone();
  EXPECT_EQ(called, 1);
}

// Load generators and agents pause for longer than the few seconds that some servers give.
TEST(HttpLimits, IdleConnectionsAreKeptForMinutesUnlessAFlagSaysOtherwise) {
  EXPECT_GE(ServerOptions().limits.keep_alive_s, 600);
}

TEST(HttpErrors, BodiesAreJsonWhateverTheMessage) {
  const std::string body = error_body({400, "bad \"x\"\n\xff", "messages[0]", "context_length_exceeded"});
  EXPECT_EQ(body, "{\"error\":{\"message\":\"bad \\\"x\\\"\\n\xEF\xBF\xBD\",\"type\":\"invalid_request_error\","
                  "\"param\":\"messages[0]\",\"code\":\"context_length_exceeded\"}}");
  EXPECT_TRUE(text::parse_json(body, "body").ok());
  EXPECT_EQ(api_error(invalid_argument("x")).status, 400);
  EXPECT_EQ(api_error(out_of_range("x")).status, 400);
  EXPECT_EQ(api_error(not_found("x")).status, 404);
  EXPECT_EQ(api_error(resource_exhausted("x")).status, 503);
  EXPECT_EQ(api_error(io_error("x")).status, 500);
}

class FakeBackend : public engine::Backend {
 public:
  const engine::BackendInfo& info() const override { return info_; }
  engine::BackendState state() const override { return state_; }
  Result<engine::RequestKey> submit(engine::TokenRequest, engine::OnUpdate) override { return engine::RequestKey{1}; }
  void cancel(engine::RequestKey) override {}
  void complete(engine::RequestKey, int64_t) override {}
  void drain() override { state_.draining = true; }
  void pause(bool paused) override { state_.paused = paused; }
  void reset_prefix_cache() override {}
  engine::BackendInfo info_;
  engine::BackendState state_;
};

TEST(HttpHealth, SaysWhyNot) {
  auto state = std::make_shared<ServerState>();
  Health health("1.2", state);
  EXPECT_EQ(health.trouble(), "the model is loading");
  FakeBackend backend;
  health.set_backend(&backend);
  EXPECT_EQ(health.trouble(), "");
  EXPECT_EQ(health.not_ready(), "");
  backend.state_.beat_age_s = 1.6;
  EXPECT_EQ(health.trouble(), "the engine's last sign of life is 1.6 s old (step 0, 0 running, 0 waiting)");
  backend.state_.beat_age_s = 0.3;
  backend.pause(true);
  EXPECT_EQ(health.trouble(), "");
  EXPECT_EQ(health.not_ready(), "the engine is paused");
  backend.drain();
  EXPECT_EQ(health.trouble(), "the engine is draining");
  state->draining = true;
  EXPECT_EQ(health.trouble(), "the server is draining");
}

TEST(HttpMetrics, NamesAndNumbers) {
  auto state = std::make_shared<ServerState>();
  Metrics metrics("my \"model\"", state);
  FakeBackend backend;
  backend.info_ = {"/m", 1000, 100, 64, 500, 32000, "fp8", "fp8"};
  backend.state_.running = 3;
  backend.state_.cache_usage = 0.25;
  backend.state_.prompt_tokens = 100;
  backend.state_.prefix_hits = 50;
  metrics.set_backend(&backend);
  metrics.first_token(0.03);
  metrics.inter_token(0.08, 4);
  RequestReport report;
  report.finish_reason = "stop";
  report.prompt_tokens = 150;
  report.generated_tokens = 5;
  report.e2e_s = 1.7;
  report.decode_s = 0.4;
  metrics.request_finished(report);
  FinishedRequest exchange;
  exchange.method = "GET";
  exchange.route = "/hello";
  exchange.status = 200;
  metrics.exchange_finished(exchange);
  exchange.method = "STRANGE";
  exchange.route = "";
  exchange.status = 404;
  metrics.exchange_finished(exchange);
  const std::string text = metrics.print();
  const std::string labels = R"({model_name="my \"model\"",engine="0")";
  for (const std::string& line : {
           "vllm:num_requests_running" + labels + "} 3\n",
           "vllm:kv_cache_usage_perc" + labels + "} 0.25\n",
           "vllm:prompt_tokens_total" + labels + "} 150\n",
           "vllm:prompt_tokens_by_source_total" + labels + ",source=\"local_cache_hit\"} 50\n",
           "vllm:time_to_first_token_seconds_bucket" + labels + ",le=\"0.02\"} 0\n",
           "vllm:time_to_first_token_seconds_bucket" + labels + ",le=\"0.04\"} 1\n",
           "vllm:time_to_first_token_seconds_bucket" + labels + ",le=\"+Inf\"} 1\n",
           "vllm:inter_token_latency_seconds_count" + labels + "} 4\n",
           "vllm:inter_token_latency_seconds_sum" + labels + "} 0.08\n",
           "vllm:request_time_per_output_token_seconds_sum" + labels + "} 0.1\n",
           "vllm:request_success_total" + labels + ",finished_reason=\"stop\"} 1\n",
           "vllm:request_success_total" + labels + ",finished_reason=\"length\"} 0\n",
           "vllm:cache_config_info" + labels +
               ",block_size=\"64\",num_gpu_blocks=\"500\",cache_dtype=\"fp8\"," +
               "index_key_dtype=\"fp8\",cache_tokens=\"32000\",max_model_len=\"1000\"} 1\n",
           std::string("http_requests_total{method=\"GET\",handler=\"/hello\",status=\"200\"} 1\n"),
           std::string("http_requests_total{method=\"other\",handler=\"none\",status=\"404\"} 1\n"),
       })
    EXPECT_NE(text.find("\n" + line), std::string::npos) << line << text;
}

// What a scraper demands of the format: every sample belongs to the family announced before it, and no family comes twice.
TEST(HttpMetrics, TheFormatIsThatOfPrometheus) {
  Metrics metrics("m", std::make_shared<ServerState>());
  FakeBackend backend;
  metrics.set_backend(&backend);
  const std::string text = metrics.print();
  std::string family;
  std::vector<std::string> families;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    if (line.starts_with("# HELP ")) continue;
    if (line.starts_with("# TYPE ")) {
      family = line.substr(7, line.find(' ', 7) - 7);
      EXPECT_EQ(std::count(families.begin(), families.end(), family), 0) << family;
      families.push_back(family);
      continue;
    }
    EXPECT_TRUE(line.starts_with(family)) << line;
    EXPECT_NE(line.find("} "), std::string::npos) << line;
  }
  EXPECT_GT(families.size(), 30u);
}

}  // namespace
}  // namespace perigee::serve
