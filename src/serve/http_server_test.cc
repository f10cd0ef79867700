// The rules of HTTP, keys and limits, on real sockets.
#include <gtest/gtest.h>

#include <filesystem>

#include "serve/http_testing.h"

namespace perigee::serve {
namespace {

using testing::Client;
using testing::eventually;
using testing::Response;
using testing::ScriptedRoutes;

class HttpServer : public ::testing::Test {
 protected:
  void start(ServerOptions options = {}, std::vector<Route> admin = {}) {
    options.port = 0;
    options.log = [this](LogLevel, const std::string& line) {
      std::lock_guard lock(mutex_);
      log_ += line + "\n";
    };
    state_ = options.state;
    auto server = Server::create(std::move(options), script_.routes(), std::move(admin));
    ASSERT_TRUE(server.ok()) << server.error().message;
    server_ = std::move(*server);
    server_->start();
    port_ = server_->port();
  }
  std::string log() {
    std::lock_guard lock(mutex_);
    return log_;
  }
  // Sends bytes on a new connection and returns the first answer.
  Response answer(const std::string& bytes) {
    Client client(port_);
    client.send(bytes);
    return client.response();
  }

  ScriptedRoutes script_;
  std::mutex mutex_;
  std::string log_;
  std::shared_ptr<ServerState> state_;
  std::unique_ptr<Server> server_;
  int port_ = 0;
};

TEST_F(HttpServer, AnswersAndKeepsTheConnection) {
  start();
  Client client(port_);
  for (int i = 0; i < 3; ++i) {
    const Response response = client.get("/hello");
    EXPECT_EQ(response.status, 200);
    EXPECT_EQ(response.body, "hello");
    EXPECT_EQ(response.headers.at("content-type"), "text/plain");
    EXPECT_TRUE(response.headers.contains("date"));
    EXPECT_FALSE(response.headers.contains("connection"));
  }
  EXPECT_EQ(client.post("/echo", R"({"a":1})").body, R"({"a":1})");
  EXPECT_EQ(client.get("/item/a%20b").body, "/item/a b");
  EXPECT_EQ(client.get("/item/").status, 404);
  EXPECT_EQ(state_->connections.load(), 1);
}

TEST_F(HttpServer, UnknownPathsAndMethods) {
  start();
  Client client(port_);
  Response response = client.get("/nothing");
  EXPECT_EQ(response.status, 404);
  EXPECT_EQ(response.body, R"({"error":{"message":"there is no '/nothing' here","type":"not_found_error",)"
                           R"("param":null,"code":404}})");
  response = client.get("/echo");
  EXPECT_EQ(response.status, 405);
  EXPECT_EQ(response.headers.at("allow"), "POST, OPTIONS");
  client.send("OPTIONS /hello HTTP/1.1\r\nHost: x\r\n\r\n");
  response = client.response();
  EXPECT_EQ(response.status, 204);
  EXPECT_EQ(response.headers.at("allow"), "GET, HEAD, OPTIONS");
  client.send("HEAD /hello HTTP/1.1\r\nHost: x\r\n\r\n");
  response = client.response(true);
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.headers.at("content-length"), "5");
  EXPECT_EQ(client.get("/hello").body, "hello");  // HEAD sent no body
  EXPECT_EQ(client.get("/throw").status, 500);
  EXPECT_EQ(client.get("/forget").status, 500);
  EXPECT_NE(log().find("GET /throw failed: planted"), std::string::npos);
}

TEST_F(HttpServer, MalformedRequestsAreRefusedAndTheConnectionEnds) {
  start();
  const std::string post = "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n";
  const std::vector<std::pair<std::string, int>> cases = {
      {"\x16\x03\x01\x02", 400},
      {"GET /hello HTTP/9.9\r\nHost: x\r\n\r\n", 400},
      {"GET  /hello HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"GET /hello HTTP/1.1\r\nHost x\r\n\r\n", 400},
      {"GET /hello HTTP/1.1\r\n\r\n", 400},
      {"GET /hello HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400},
      {"GET /he%zzllo HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"GET /hello%00 HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"GET hello HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {post + "Content-Length: 1x\r\n\r\n{}", 400},
      {post + "Content-Length: -1\r\n\r\n{}", 400},
      {post + "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400},
      {post + "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 400},
      {post + "Transfer-Encoding: gzip\r\n\r\n", 400},
      {post + "Transfer-Encoding: gzip, chunked\r\n\r\n", 400},
      {post + "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
      {post + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400},
      {"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n", 415},
      {"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n", 415},
      {post + "Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n", 415},
      {post + "Expect: tea\r\nContent-Length: 2\r\n\r\n", 417},
  };
  for (const auto& [bytes, status] : cases) {
    Client client(port_);
    client.send(bytes);
    const Response response = client.response();
    EXPECT_EQ(response.status, status) << bytes;
    EXPECT_EQ(response.body.rfind(R"({"error":{"message":")", 0), 0u) << response.body;
    EXPECT_EQ(response.headers.at("connection"), "close") << bytes;
    EXPECT_TRUE(client.closed()) << bytes;
  }
  EXPECT_TRUE(eventually([&] { return state_->connections == 0 && state_->in_flight == 0; }));
}

TEST_F(HttpServer, BodiesOfEveryForm) {
  start();
  Client client(port_);
  const std::string start = "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Type: Application/JSON; charset=\"utf-8\"\r\n";
  client.send(start + "Transfer-Encoding: chunked\r\n\r\n3;ext=1\r\n{\"a\r\n");
  client.send("4\r\n\":1}\r\n0\r\nTrailer: x\r\n\r\n");
  EXPECT_EQ(client.response().body, R"({"a":1})");
  client.send(start + "Expect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_EQ(client.response().status, 100);
  client.send("{}");
  EXPECT_EQ(client.response().body, "{}");
  const std::string long_body(3 << 20, 'a');
  EXPECT_EQ(client.post("/echo", long_body).body, long_body);
  EXPECT_EQ(client.post("/echo", "\xff\xfe").body, "\xff\xfe");  // handlers judge the content
  EXPECT_EQ(client.post("/echo", "").status, 200);
  client.send("\r\n\r\n");  // left over by sloppy clients
  EXPECT_EQ(client.get("/hello").status, 200);
}

TEST_F(HttpServer, ByteByByteIsTheSame) {
  start();
  Client client(port_);
  const std::string text =
      "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
      "2\r\n[1\r\n1\r\n]\r\n0\r\n\r\nGET /hello HTTP/1.1\r\nHost: x\r\n\r\n";
  for (const char c : text) {
    client.send({&c, 1});
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  EXPECT_EQ(client.response().body, "[1]");
  EXPECT_EQ(client.response().body, "hello");
}

TEST_F(HttpServer, PipelinedRequestsAreAnsweredInOrder) {
  start();
  Client client(port_);
  std::string text;
  for (int i = 0; i < 200; ++i) {
    const std::string body = std::to_string(i);
    text += "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nX-Request-Id: r" + body +
            "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
    text += "GET /stream?n=2&ms=0 HTTP/1.1\r\nHost: x\r\nX-Request-Id: s" + body + "\r\n\r\n";
  }
  std::thread sender([&] { client.send(text); });
  for (int i = 0; i < 200; ++i) {
    const std::string n = std::to_string(i);
    const Response echo = client.response();
    ASSERT_EQ(echo.body, n);
    EXPECT_EQ(echo.headers.at("x-request-id"), "r" + n);
    const Response stream = client.response();
    ASSERT_EQ(stream.body, "data: s" + n + " 0\n\ndata: s" + n + " 1\n\n");
  }
  sender.join();
}

TEST_F(HttpServer, HalfClosedPeersGetWhatIsComplete) {
  start();
  Client client(port_);
  client.send("GET /hello HTTP/1.1\r\nHost: x\r\n\r\nGET /open HTTP/1.1\r\nHost: x\r\n\r\n");
  client.end_sending();
  EXPECT_EQ(client.response().body, "hello");
  EXPECT_EQ(client.response().body, "open");
  EXPECT_TRUE(client.closed());
  Client partial(port_);
  partial.send("GET /hello HT");
  partial.end_sending();
  EXPECT_TRUE(partial.closed());
  Client waiting(port_);
  waiting.send("GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
  ASSERT_TRUE(eventually([&] { return script_.held() == 1; }));
  waiting.end_sending();
  EXPECT_TRUE(eventually([&] { return script_.left == 1; }));
  EXPECT_TRUE(waiting.closed());
}

TEST_F(HttpServer, OldClientsGetStreamsThatEndWithTheConnection) {
  start();
  Client client(port_);
  client.send("GET /hello HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  EXPECT_EQ(client.response().headers.at("connection"), "keep-alive");
  client.send("GET /stream?n=2&ms=1 HTTP/1.0\r\nX-Request-Id: o\r\n\r\n");
  const Response response = client.response();
  EXPECT_EQ(response.body, "data: o 0\n\ndata: o 1\n\n");
  EXPECT_FALSE(response.headers.contains("transfer-encoding"));
}

TEST_F(HttpServer, LimitsOnSizes) {
  ServerOptions options;
  options.limits.intake.head_bytes_max = 4096;
  options.limits.intake.headers_max = 20;
  options.limits.intake.body_bytes_max = 1000;
  start(options);
  const std::string start = "GET /hello HTTP/1.1\r\nHost: x\r\n";
  EXPECT_EQ(answer(start + "A: " + std::string(100000, 'a')).status, 431);
  EXPECT_EQ(answer("GET /" + std::string(100000, 'a')).status, 431);
  std::string many = start;
  for (int i = 0; i < 19; ++i) many += "A: b\r\n";
  EXPECT_EQ(answer(many + "\r\n").status, 200);
  EXPECT_EQ(answer(many + "A: b\r\n\r\n").status, 431);
  Client client(port_);
  EXPECT_EQ(client.post("/echo", std::string(1000, 'b')).status, 200);
  const Response large = client.post("/echo", std::string(1001, 'b'));
  EXPECT_EQ(large.status, 413);
  EXPECT_NE(large.body.find("the body is longer than 1000 bytes"), std::string::npos);
  const std::string chunked =
      "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
  EXPECT_EQ(answer(chunked + "3e8\r\n" + std::string(1000, 'c') + "\r\n1\r\nc\r\n0\r\n\r\n").status, 413);
  EXPECT_EQ(answer(chunked + "1;" + std::string(100000, 'e')).status, 400);
  // A sender that does not care for the answer cannot keep it from arriving.
  Client sender(port_);
  sender.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 30000000\r\n\r\n");
  const std::string part(1 << 20, 'd');
  for (int i = 0; i < 4 && sender.send(part); ++i) {
  }
  EXPECT_EQ(sender.response().status, 413);
}

TEST_F(HttpServer, ManyBodiesAtOnceAreRefusedBeforeTheyFillTheMemory) {
  ServerOptions options;
  options.limits.bodies_bytes_max = 100'000;
  start(options);
  const std::string head = "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 60000\r\n\r\n";
  const std::string part(45'000, 'p');
  Client first(port_), second(port_), third(port_);
  first.send(head + part);
  second.send(head + part);
  ASSERT_TRUE(eventually([&] { return options.state->body_bytes == 90'000; }));
  third.send(head + part);
  const Response refused = third.response();
  EXPECT_EQ(refused.status, 503);
  EXPECT_NE(refused.body.find("too many bytes of other requests"), std::string::npos) << refused.body;
  EXPECT_EQ(refused.headers.count("retry-after"), 1U);
  first.send(std::string(15'000, 'p'));  // 105,000 in all: the last bytes are refused like first ones
  EXPECT_EQ(first.response().status, 503);
  second.send(std::string(15'000, 'p'));
  EXPECT_EQ(second.response().status, 200);
  EXPECT_TRUE(eventually([&] { return options.state->body_bytes == 0; }));
}

TEST_F(HttpServer, SlowSendersAreGivenUp) {
  ServerOptions options;
  options.limits.header_time_s = 0.4;
  options.limits.body_bytes_per_s = 1000;
  options.limits.keep_alive_s = 1.5;
  start(options);
  Client head(port_);
  const auto begun = std::chrono::steady_clock::now();
  head.send("GET /hello HTTP/1.1\r\nHost: x\r\n");
  bool open = true;
  for (int i = 0; i < 200 && open; ++i) {
    open = head.send("A: b\r\n") && !head.receive(20);  // always something new, never the end
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
  EXPECT_EQ(head.response().status, 408);
  EXPECT_LT(took.count(), 5);
  Client body(port_);
  body.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\nabc");
  EXPECT_EQ(body.response().status, 408);
  Client idle(port_);
  EXPECT_EQ(idle.get("/hello").status, 200);
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  EXPECT_EQ(idle.get("/hello").status, 200);  // an idle connection lives longer than a slow head
  EXPECT_TRUE(idle.closed(10000));
}

TEST_F(HttpServer, KeysAreNeededEverywhereButWhereARouteSaysSo) {
  ServerOptions options;
  options.api_keys = {"first-key", "second-key"};
  start(options);
  Client client(port_);
  EXPECT_EQ(client.get("/open").status, 200);
  for (const std::string path : {"/hello", "/nothing", "/echo"}) {
    const Response response = client.get(path);
    EXPECT_EQ(response.status, 401) << path;
    EXPECT_EQ(response.headers.at("www-authenticate"), "Bearer");
    EXPECT_NE(response.body.find(R"("type":"authentication_error")"), std::string::npos);
  }
  for (const std::string header : {"Authorization: Bearer wrong", "Authorization: first-key", "Authorization: Basic first-key",
                                   "Authorization: Bearer ", "x-api-key: first-ke", "x-api-key: first-key1", "x-api-key:"})
    EXPECT_EQ(client.get("/hello", header + "\r\n").status, 401) << header;
  EXPECT_EQ(client.get("/hello", "Authorization: Bearer first-key\r\n").status, 200);
  EXPECT_EQ(client.get("/hello", "authorization: bearer second-key\r\n").status, 200);
  EXPECT_EQ(client.get("/hello", "X-API-Key: second-key\r\n").status, 200);
  EXPECT_EQ(client.get("/nothing", "X-API-Key: second-key\r\n").status, 404);
  const std::string first = client.post("/echo", "{}", "X-API-Key: first-key\r\n").headers.at("x-tenant");
  const std::string second = client.post("/echo", "{}", "Authorization: Bearer second-key\r\n").headers.at("x-tenant");
  EXPECT_EQ(first.size(), 64u);
  EXPECT_NE(first, second);
  // Without a key nobody makes the server hold a body.
  Client stranger(port_);
  stranger.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 60000000\r\n\r\n");
  EXPECT_EQ(stranger.response().status, 401);
  EXPECT_EQ(log().find("key"), std::string::npos);
}

TEST_F(HttpServer, AdministrationHasItsOwnDoor) {
  ServerOptions options;
  options.api_keys = {"user"};
  options.admin_port = 0;
  auto refused = Server::create(options, script_.routes());
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("--admin-key"), std::string::npos);
  options.admin_key = "admin";
  const Handler pause = [](const HttpRequest&, const std::shared_ptr<Reply>& reply) { reply->send(200, "text/plain", "ok", {}); };
  start(options, {{"POST", "/pause", pause}});
  Client admin(*server_->admin_port());
  EXPECT_EQ(admin.post("/pause", "").status, 401);
  EXPECT_EQ(admin.post("/pause", "", "x-api-key: user\r\n").status, 401);
  EXPECT_EQ(admin.post("/pause", "", "x-api-key: admin\r\n").status, 200);
  EXPECT_EQ(admin.get("/hello", "x-api-key: admin\r\n").status, 404);
  Client user(port_);
  EXPECT_EQ(user.post("/pause", "", "x-api-key: user\r\n").status, 404);
  EXPECT_EQ(user.get("/hello", "x-api-key: admin\r\n").status, 401);
}

TEST_F(HttpServer, WhileLoadingOnlyStatusAnswers) {
  ServerOptions options;
  options.port = 0;
  options.loading = true;
  options.api_keys = {"key"};
  options.admin_port = 0;
  options.admin_key = "admin";
  const Handler open = [](const HttpRequest&, const auto& reply) { reply->send(200, "text/plain", "open", {}); };
  const std::vector<Route> early = {{"GET", "/open", open, Access::kOpen, Where::kInline}};
  auto server = Server::create(std::move(options), early);
  ASSERT_TRUE(server.ok()) << server.error().message;
  (*server)->start();
  const std::string key = "x-api-key: key\r\n";
  Client client((*server)->port());
  Client admin(*(*server)->admin_port());
  EXPECT_EQ(client.get("/open").status, 200);
  EXPECT_EQ(client.post("/open", "", key).status, 405) << "what answers keeps its methods";
  for (const char* path : {"/hello", "/echo", "/no/such/path"}) {
    EXPECT_EQ(client.get(path).status, 401) << "keys come first";
    const Response refused = client.get(path, key);
    EXPECT_EQ(refused.status, 503);
    EXPECT_TRUE(refused.headers.contains("retry-after"));
    EXPECT_NE(refused.body.find(R"("type":"service_unavailable_error")"), std::string::npos) << refused.body;
    EXPECT_NE(refused.body.find("loading"), std::string::npos) << refused.body;
  }
  EXPECT_EQ(Client((*server)->port()).post("/echo", R"({"a":1})", key).status, 503);
  EXPECT_EQ(admin.get("/pause", "x-api-key: admin\r\n").status, 503);

  (*server)->open(script_.routes(), {{"GET", "/pause", open}});
  EXPECT_EQ(client.get("/hello", key).status, 200) << "the same connection goes on";
  EXPECT_EQ(client.get("/no/such/path", key).status, 404);
  EXPECT_EQ(admin.get("/pause", "x-api-key: admin\r\n").status, 200);
}

TEST_F(HttpServer, BrowsersOfAllowedOriginsMayCall) {
  ServerOptions options;
  options.api_keys = {"key"};
  options.cors.origins = {"https://a.example"};
  start(options);
  const auto preflight = [&](const std::string& origin) {
    return answer("OPTIONS /echo HTTP/1.1\r\nHost: x\r\nOrigin: " + origin +
                  "\r\nAccess-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization,x-a\r\n\r\n");
  };
  Response response = preflight("https://a.example");
  EXPECT_EQ(response.status, 204);
  EXPECT_EQ(response.headers.at("access-control-allow-origin"), "https://a.example");
  EXPECT_EQ(response.headers.at("access-control-allow-methods"), "POST");
  EXPECT_EQ(response.headers.at("access-control-allow-headers"), "authorization,x-a");
  EXPECT_EQ(response.headers.at("vary"), "Origin");
  EXPECT_FALSE(preflight("https://b.example").headers.contains("access-control-allow-origin"));
  Client client(port_);
  response = client.get("/hello", "Origin: https://a.example\r\nx-api-key: key\r\n");
  EXPECT_EQ(response.headers.at("access-control-allow-origin"), "https://a.example");
  EXPECT_EQ(client.get("/hello", "Origin: https://a.example\r\n").headers.at("access-control-allow-origin"), "https://a.example");
  client.send("OPTIONS /echo HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(client.response().status, 401);  // no preflight
}

TEST_F(HttpServer, RequestIdsAndTheAccessLog) {
  ServerOptions options;
  options.access_log_without = {"/open"};
  start(options);
  Client client(port_);
  EXPECT_EQ(client.get("/hello?secret=1", "X-Request-Id: my-id-7\r\n").headers.at("x-request-id"), "my-id-7");
  const std::string made = client.get("/hello", "X-Request-Id: bad \"id\r\n").headers.at("x-request-id");
  EXPECT_EQ(made.size(), 32u);
  EXPECT_NE(client.get("/hello").headers.at("x-request-id"), made);
  EXPECT_EQ(client.get("/open").status, 200);
  EXPECT_EQ(client.post("/echo", "secret").status, 200);
  ASSERT_TRUE(eventually([&] { return log().find("/echo") != std::string::npos; }));
  EXPECT_NE(log().find("\"GET /hello\" 200 "), std::string::npos) << log();
  EXPECT_NE(log().find(" id=my-id-7\n"), std::string::npos) << log();
  EXPECT_EQ(log().find("/open"), std::string::npos);
  EXPECT_EQ(log().find("secret"), std::string::npos);
}

TEST_F(HttpServer, NoAccessLogWhenNotWanted) {
  ServerOptions options;
  options.access_log = false;
  start(options);
  EXPECT_EQ(Client(port_).get("/hello").status, 200);
  EXPECT_TRUE(eventually([&] { return state_->in_flight == 0; }));
  EXPECT_EQ(log(), "");
}

TEST_F(HttpServer, MoreConnectionsThanAllowedAreRefused) {
  ServerOptions options;
  options.connections_max = 2;
  start(options);
  Client a(port_), b(port_);
  EXPECT_EQ(a.get("/hello").status, 200);
  EXPECT_EQ(b.get("/hello").status, 200);
  Client c(port_);
  EXPECT_TRUE(c.closed());
  a.close();
  ASSERT_TRUE(eventually([&] { return state_->connections == 1; }));
  EXPECT_EQ(Client(port_).get("/hello").status, 200);
  EXPECT_EQ(state_->connections_refused, 1u);
}

TEST_F(HttpServer, OptionsThatCannotBe) {
  const auto message = [&](auto change) {
    ServerOptions options;
    options.port = 0;
    change(options);
    auto server = Server::create(std::move(options), script_.routes());
    return server.ok() ? std::string("accepted") : server.error().message;
  };
  EXPECT_NE(message([](auto& o) { o.port = 70000; }).find("--port 70000"), std::string::npos);
  EXPECT_NE(message([](auto& o) { o.host = "no such host"; }).find("--host 'no such host'"), std::string::npos);
  EXPECT_NE(message([](auto& o) { o.api_keys = {""}; }).find("--api-key"), std::string::npos);
  EXPECT_NE(message([](auto& o) { o.tls_certificate = "x"; }).find("--ssl-keyfile"), std::string::npos);
  EXPECT_NE(message([](auto& o) { o.tls_certificate = o.tls_key = "/nowhere"; }).find("--ssl-certfile: '/nowhere'"),
            std::string::npos);
  start();
  EXPECT_NE(message([this](auto& o) { o.port = port_; }).find("cannot listen on 127.0.0.1"), std::string::npos);
}

}  // namespace
}  // namespace perigee::serve
