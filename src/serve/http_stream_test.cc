// Streams, peers that leave or do not read, drain, TLS.
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>

#include <dirent.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "serve/http_testing.h"
#include "serve/self_signed.h"

namespace perigee::serve {
namespace {

using testing::Client;
using testing::eventually;
using testing::Response;
using testing::ScriptedRoutes;
using testing::SelfSigned;

std::unique_ptr<Server> started(ServerOptions options, ScriptedRoutes& script) {
  options.port = 0;
  auto server = Server::create(std::move(options), script.routes());
  CHECK(server.ok());
  (*server)->start();
  return std::move(*server);
}

std::string events(const std::string& id, int n) {
  std::string text;
  for (int i = 0; i < n; ++i) text += "data: " + id + " " + std::to_string(i) + "\n\n";
  return text;
}

size_t entries(const char* folder) {
  size_t count = 0;
  DIR* dir = ::opendir(folder);
  while (::readdir(dir) != nullptr) ++count;
  ::closedir(dir);
  return count;
}

TEST(HttpStream, ComesPieceByPieceAndLeavesTheConnectionUsable) {
  ScriptedRoutes script;
  auto server = started({}, script);
  Client client(server->port());
  for (int round = 0; round < 3; ++round) {
    const Response response = client.get("/stream?n=20&ms=1", "X-Request-Id: a\r\n");
    EXPECT_EQ(response.headers.at("content-type"), "text/event-stream");
    EXPECT_EQ(response.headers.at("cache-control"), "no-cache");
    EXPECT_TRUE(response.complete);
    EXPECT_EQ(response.body, events("a", 20));
    EXPECT_EQ(client.get("/hello").body, "hello");
  }
  client.send("HEAD /stream?n=3&ms=0 HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(client.response(true).status, 200);
  EXPECT_EQ(client.get("/hello").body, "hello");
}

TEST(HttpStream, SixteenAtOnceDoNotMix) {
  ScriptedRoutes script;
  ServerOptions options;
  options.io_threads = 2;
  auto server = started(std::move(options), script);
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int i = 0; i < 16; ++i) {
    threads.emplace_back([&, i] {
      Client client(server->port());
      const std::string id = "stream-" + std::to_string(i);
      const Response response = client.get("/stream?n=200&ms=1", "X-Request-Id: " + id + "\r\n");
      if (response.complete && response.body == events(id, 200)) ++right;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(right, 16);
  EXPECT_EQ(script.left, 0);
}

TEST(HttpStream, AbandonedStreamsLackTheirEnd) {
  ScriptedRoutes script;
  auto server = started({}, script);
  Client client(server->port());
  const Response response = client.get("/abandon");
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.body, "data: 1\n\n");
  EXPECT_FALSE(response.complete);
  EXPECT_TRUE(client.closed());
}

TEST(HttpStream, AnIdleStreamOfEventsIsKeptAlive) {
  ScriptedRoutes script;
  ServerOptions options;
  options.limits.sse_keep_alive_s = 0.2;
  auto server = started(std::move(options), script);
  Client client(server->port());
  client.send("GET /hold?begin=1 HTTP/1.1\r\nHost: x\r\n\r\n");
  const auto begun = std::chrono::steady_clock::now();
  EXPECT_TRUE(client.wait_for("\r\n\r\ne\r\n: keep-alive\n\n\r\ne\r\n: keep-alive\n\n\r\n"));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
  EXPECT_GT(took.count(), 0.35);
  Client whole(server->port());
  whole.send("GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_FALSE(whole.receive(600));  // not in an answer that has not begun
}

TEST(HttpStream, APeerThatLeavesIsNoticedThoughNothingIsWritten) {
  ScriptedRoutes script;
  auto state = std::make_shared<ServerState>();
  ServerOptions options;
  options.state = state;
  auto server = started(std::move(options), script);
  int expected = 0;
  for (const std::string path : {"/hold", "/hold?begin=1", "/stream?n=100000&ms=1"}) {
    for (const bool reset : {false, true}) {
      Client client(server->port());
      client.send("GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n");
      ASSERT_TRUE(eventually([&] { return state->in_flight == 1; }));
      const bool begun_or_held =
          path == "/hold" ? eventually([&] { return script.held() > (reset ? 1u : 0u); }) : client.wait_for("200 OK");
      ASSERT_TRUE(begun_or_held);
      if (reset) {
        const linger hard{1, 0};
        ::setsockopt(client.socket(), SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
      }
      const auto begun = std::chrono::steady_clock::now();
      client.close();
      ++expected;
      ASSERT_TRUE(eventually([&] { return script.left == expected; })) << path;
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
      EXPECT_LT(took.count(), 1.0) << path;
      EXPECT_TRUE(eventually([&] { return state->in_flight == 0 && state->connections == 0; }));
    }
  }
  EXPECT_EQ(state->disconnects, 6u);
}

TEST(HttpStream, AReaderThatStopsIsCut) {
  ScriptedRoutes script;
  auto state = std::make_shared<ServerState>();
  ServerOptions options;
  options.state = state;
  options.limits.stream_queue_bytes = 100000;
  auto server = started(std::move(options), script);
  Client client(server->port(), 4096);
  client.send("GET /flood HTTP/1.1\r\nHost: x\r\n\r\n");
  ASSERT_TRUE(client.wait_for("data: x"));
  EXPECT_TRUE(eventually([&] { return script.left == 1; }));  // reads no more
  EXPECT_EQ(state->readers_cut, 1u);
  EXPECT_TRUE(eventually([&] { return state->connections == 0; }));
  EXPECT_TRUE(client.closed());
  EXPECT_FALSE(client.received().ends_with("0\r\n\r\n"));
}

TEST(HttpStream, AReaderThatNeverReadsAWholeAnswerIsCutAfterATime) {
  ScriptedRoutes script;
  auto state = std::make_shared<ServerState>();
  ServerOptions options;
  options.state = state;
  options.limits.write_stall_s = 0.5;
  auto server = started(std::move(options), script);
  Client client(server->port(), 4096);
  const std::string body(16 << 20, 'a');
  client.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: " +
              std::to_string(body.size()) + "\r\n\r\n" + body);
  EXPECT_TRUE(eventually([&] { return state->readers_cut == 1; }));
  EXPECT_TRUE(eventually([&] { return state->connections == 0; }));
}

TEST(HttpStream, DrainLetsStreamsFinish) {
  ScriptedRoutes script;
  ServerOptions options;
  auto state = std::make_shared<ServerState>();
  options.state = state;
  auto server = started(std::move(options), script);
  const int port = server->port();
  Client idle(port), busy(port);
  EXPECT_EQ(idle.get("/hello").status, 200);
  busy.send("GET /stream?n=200&ms=2 HTTP/1.1\r\nHost: x\r\nX-Request-Id: b\r\n\r\n");
  ASSERT_TRUE(busy.wait_for("data: b 0"));
  std::thread drainer([&] { EXPECT_EQ(server->drain(20), 0); });
  EXPECT_TRUE(idle.closed(2000));
  const Response response = busy.response();
  EXPECT_TRUE(response.complete);
  EXPECT_EQ(response.body, events("b", 200));
  EXPECT_TRUE(busy.closed(5000));
  drainer.join();
  EXPECT_TRUE(state->draining);
  EXPECT_FALSE(Client(port).connected());
  EXPECT_EQ(script.left, 0);
}

TEST(HttpStream, DrainBreaksOffWhatDoesNotFinishInTime) {
  ScriptedRoutes script;
  auto server = started({}, script);
  Client busy(server->port());
  busy.send("GET /stream?n=1000000&ms=2 HTTP/1.1\r\nHost: x\r\n\r\n");
  ASSERT_TRUE(busy.wait_for(" 3\n"));
  const auto begun = std::chrono::steady_clock::now();
  EXPECT_EQ(server->drain(0.3), 1);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
  EXPECT_LT(took.count(), 3);
  EXPECT_TRUE(busy.closed());
  EXPECT_EQ(script.left, 1);
  server->stop();
}

TEST(HttpStream, StopLeavesNothingBehind) {
  const size_t threads = entries("/proc/self/task");
  const size_t files = entries("/proc/self/fd");
  for (int round = 0; round < 5; ++round) {
    ScriptedRoutes script;
    ServerOptions options;
    options.io_threads = 2;
    auto server = started(std::move(options), script);
    std::vector<std::unique_ptr<Client>> clients;
    for (int i = 0; i < 20; ++i) {
      clients.push_back(std::make_unique<Client>(server->port()));
      const std::string path = i % 2 == 0 ? "/stream?n=1000000&ms=1" : "/hello";
      clients.back()->send("GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n");
      ASSERT_TRUE(clients.back()->wait_for("200 OK"));
    }
    server->stop();
    server.reset();  // while the script's threads still write
    for (auto& client : clients) EXPECT_TRUE(client->closed());
    EXPECT_EQ(script.left, 10);
  }
  EXPECT_EQ(entries("/proc/self/task"), threads);
  EXPECT_EQ(entries("/proc/self/fd"), files);
}

class TlsClient {
 public:
  TlsClient(int port, const std::string& certificate) : client_(port), context_(SSL_CTX_new(TLS_client_method())) {
    SSL_CTX_load_verify_locations(context_, certificate.c_str(), nullptr);
    SSL_CTX_set_verify(context_, SSL_VERIFY_PEER, nullptr);
    tls_ = SSL_new(context_);
    SSL_set1_host(tls_, "localhost");
    SSL_set_fd(tls_, client_.socket());
    good_ = SSL_connect(tls_) == 1;
  }
  TlsClient(const TlsClient&) = delete;
  TlsClient& operator=(const TlsClient&) = delete;
  ~TlsClient() {
    SSL_free(tls_);
    SSL_CTX_free(context_);
  }
  bool good() const { return good_; }
  void close() { client_.close(); }
  void send(const std::string& text) {
    const int size = static_cast<int>(text.size());
    EXPECT_EQ(SSL_write(tls_, text.data(), size), size);
  }
  // Everything up to and with `end`, or to the end of the connection.
  std::string read_to(const std::string& end) {
    while (received_.find(end) == std::string::npos) {
      char buffer[16384];
      const int n = SSL_read(tls_, buffer, sizeof(buffer));
      if (n <= 0) return std::exchange(received_, "");
      received_.append(buffer, static_cast<size_t>(n));
    }
    const size_t at = received_.find(end) + end.size();
    std::string result = received_.substr(0, at);
    received_.erase(0, at);
    return result;
  }

 private:
  Client client_;
  SSL_CTX* context_;
  SSL* tls_ = nullptr;
  bool good_ = false;
  std::string received_;
};

TEST(HttpTls, TheSameThroughTls) {
  const SelfSigned files;
  ScriptedRoutes script;
  auto state = std::make_shared<ServerState>();
  ServerOptions options;
  options.tls_certificate = files.certificate_path;
  options.tls_key = files.key_path;
  options.limits.header_time_s = 1;
  options.state = state;
  auto server = started(std::move(options), script);
  Client silent(server->port());  // never shakes hands
  {
    TlsClient client(server->port(), files.certificate_path);
    ASSERT_TRUE(client.good());
    for (int i = 0; i < 2; ++i) {
      client.send("GET /stream?n=50&ms=1 HTTP/1.1\r\nHost: x\r\nX-Request-Id: t\r\n\r\n");
      const std::string stream = client.read_to("0\r\n\r\n");
      EXPECT_NE(stream.find("data: t 49\n\n"), std::string::npos);
      const std::string body(2 << 20, 'a');
      client.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: " +
                  std::to_string(body.size() + 3) + "\r\n\r\n" + body + "end");
      const std::string echo = client.read_to("end");
      EXPECT_EQ(echo.size() - echo.find("\r\n\r\n") - 4, body.size() + 3);
    }
    client.send("GET /hold?begin=1 HTTP/1.1\r\nHost: x\r\n\r\n");
    EXPECT_NE(client.read_to("\r\n\r\n").find("200 OK"), std::string::npos);
    client.close();
    EXPECT_TRUE(eventually([&] { return script.left == 1; }));
  }
  Client plain(server->port());
  plain.send("GET /hello HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_TRUE(plain.closed());
  EXPECT_TRUE(silent.closed(5000));
  EXPECT_TRUE(eventually([&] { return state->connections == 0; }));
}

TEST(HttpTls, AKeyOfAnotherCertificateIsRefused) {
  const SelfSigned files;
  EVP_PKEY* other = EVP_EC_gen("P-256");
  const std::string path = files.stem + ".other";
  FILE* file = std::fopen(path.c_str(), "w");
  PEM_write_PrivateKey(file, other, nullptr, nullptr, 0, nullptr, nullptr);
  std::fclose(file);
  EVP_PKEY_free(other);
  const auto loaded = TlsContext::load(files.certificate_path, path);
  ASSERT_FALSE(loaded.ok());
  EXPECT_NE(loaded.error().message.find("--ssl-keyfile"), std::string::npos);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace perigee::serve
