// The client against our own server, against answers written byte by byte, and against nobody.
#include "serve/http_client.h"

#include <gtest/gtest.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/eventfd.h>

#include <chrono>

#include "serve/http_testing.h"
#include "serve/self_signed.h"

namespace perigee::serve {
namespace {

using testing::eventually;
using testing::ScriptedRoutes;
using testing::SelfSigned;

// Listens on a port of its own; answers each connection with the next text, a few bytes at a time, once a head has come.
class Scripted {
 public:
  explicit Scripted(std::vector<std::string> answers, size_t step = 1 << 20) {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    socklen_t size = sizeof(address);
    CHECK_EQ(::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port = ntohs(address.sin_port);
    CHECK_EQ(::listen(listener_, 8), 0);
    thread_ = std::thread([this, step, answers = std::move(answers)] {
      for (const std::string& answer : answers) serve(answer, step);
    });
  }
  ~Scripted() {
    thread_.join();
    ::close(listener_);
  }
  int port = 0;
  std::string heads;

 private:
  void serve(std::string_view answer, size_t step) {
    const int peer = ::accept(listener_, nullptr, nullptr);
    char buffer[4096];
    std::string head;
    while (head.find("\r\n\r\n") == std::string::npos) {
      const ssize_t n = ::recv(peer, buffer, sizeof(buffer), 0);
      if (n <= 0) break;
      head.append(buffer, static_cast<size_t>(n));
    }
    heads += head;
    const int on = 1;
    ::setsockopt(peer, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    while (!answer.empty()) {
      ::send(peer, answer.data(), std::min(step, answer.size()), MSG_NOSIGNAL);
      answer.remove_prefix(std::min(step, answer.size()));
    }
    ::close(peer);
  }
  int listener_ = -1;
  std::thread thread_;
};

HttpClient client_of(int port, const std::string& scheme = "http", const std::string& host = "127.0.0.1",
                     const std::string& ca_file = "") {
  const Result<Url> url = parse_url(fmt::format("{}://{}:{}", scheme, host, port), "--url");
  CHECK(url.ok());
  Result<HttpClient> client = HttpClient::create(*url, ca_file);
  CHECK(client.ok());
  return std::move(*client);
}

struct Got {
  Result<ClientReply> reply;
  std::string pieces;
};
Got get(const HttpClient& client, const std::string& path, int cancel = -1) {
  std::string pieces;
  Result<ClientReply> reply = client.send({"GET", path, {}, ""}, [&](std::string_view piece) {
    pieces += piece;
    return true;
  }, cancel);
  return {std::move(reply), std::move(pieces)};
}

std::unique_ptr<Server> started(ServerOptions options, ScriptedRoutes& script) {
  options.port = 0;
  auto server = Server::create(std::move(options), script.routes());
  CHECK(server.ok());
  (*server)->start();
  return std::move(*server);
}

TEST(Url, IsTakenApart) {
  const auto text = [](std::string_view url) {
    const Result<Url> parsed = parse_url(url, "--url");
    return parsed.ok() ? parsed->text() : parsed.error().message;
  };
  EXPECT_EQ(text("http://localhost"), "http://localhost");
  EXPECT_EQ(text("HTTPS://a.b:443/x/v1//"), "https://a.b/x/v1");
  EXPECT_EQ(text("http://[::1]:8000/v1"), "http://[::1]:8000/v1");
  EXPECT_EQ(parse_url("http://[::1]:8000/v1", "")->host, "::1");
  EXPECT_EQ(parse_url("https://a", "")->port, 443);
  EXPECT_EQ(parse_url("http://a:81/", "")->path, "");
  for (const char* bad : {"", "a", "localhost:8000", "ftp://a", "http://", "http:///v1", "http://:80", "http://a:",
                          "http://a:0", "http://a:65536", "http://a:8x", "http://u@a", "http://a/?q", "http://a/#f",
                          "http://a b", "http://[::1", "http://[::1]8", "http://a/\r\nX: y", "http://\xC3\xA4"}) {
    const Result<Url> parsed = parse_url(bad, "--url");
    ASSERT_FALSE(parsed.ok()) << bad;
    EXPECT_EQ(parsed.error().message.find("--url is '"), 0u);
    EXPECT_EQ(parsed.error().code, ErrorCode::kInvalidArgument);
  }
}

TEST(HttpClient, AnswersOfOurServer) {
  ScriptedRoutes script;
  auto server = started({}, script);
  const HttpClient client = client_of(server->port());
  Got got = get(client, "/hello");
  ASSERT_TRUE(got.reply.ok());
  EXPECT_EQ(got.reply->status, 200);
  EXPECT_EQ(got.reply->body, "hello");
  EXPECT_FALSE(got.reply->streamed);
  EXPECT_EQ(get(client, "/nowhere").reply->status, 404);
  const std::string body = '"' + std::string(3 << 20, 'b') + '"';
  const auto echo = client.send({"POST", "/echo", {}, body}, [](std::string_view) { return true; }, -1);
  ASSERT_TRUE(echo.ok());
  EXPECT_EQ(echo->content_type, "application/json");
  EXPECT_EQ(echo->body, body);
  got = get(client, "/stream?n=50&ms=1");
  ASSERT_TRUE(got.reply.ok());
  EXPECT_TRUE(got.reply->streamed);
  EXPECT_NE(got.pieces.find(" 49\n\n"), std::string::npos);
  got = get(client, "/abandon");
  ASSERT_FALSE(got.reply.ok());
  EXPECT_EQ(got.pieces, "data: 1\n\n");
  EXPECT_NE(got.reply.error().message.find("broke off"), std::string::npos);
}

TEST(HttpClient, EnoughEndsAStreamWithoutEnd) {
  ScriptedRoutes script;
  auto server = started({}, script);
  size_t bytes = 0;
  const auto reply = client_of(server->port()).send({"GET", "/flood", {}, ""}, [&](std::string_view piece) {
    bytes += piece.size();
    return bytes < 100000;
  }, -1);
  EXPECT_TRUE(reply.ok());
  EXPECT_TRUE(eventually([&] { return script.left == 1; }));
}

// Silent before the answer, silent inside it, and in the middle of a flood.
TEST(HttpClient, CancellingIsSeenByTheServer) {
  ScriptedRoutes script;
  auto state = std::make_shared<ServerState>();
  ServerOptions options;
  options.state = state;
  auto server = started(std::move(options), script);
  int left = 0;
  for (const std::string path : {"/hold", "/hold?begin=1", "/flood"}) {
    const int cancel = ::eventfd(0, EFD_CLOEXEC);
    std::thread later([&] {
      eventually([&] { return state->in_flight == 1; });
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      const uint64_t one = 1;
      EXPECT_EQ(::write(cancel, &one, sizeof(one)), 8);
    });
    const Got got = get(client_of(server->port()), path, cancel);
    later.join();
    ::close(cancel);
    ASSERT_FALSE(got.reply.ok()) << path;
    ++left;
    EXPECT_TRUE(eventually([&] { return script.left == left && state->in_flight == 0; })) << path;
  }
}

TEST(HttpClient, EveryFramingAtEveryCut) {
  const std::string stream = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n";
  const std::vector<std::string> answers = {
      stream + "Transfer-Encoding: chunked\r\n\r\n5\r\ndata:\r\n4;x=y\r\n a\n\n\r\n0\r\nTrailer: t\r\n\r\n",
      stream + "Content-Length: 9\r\n\r\ndata: a\n\nmore",
      stream + "\r\ndata: a\n\n",
      "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + stream + "Content-Length: 9\r\n\r\ndata: a\n\n"};
  for (const size_t step : {1u, 2u, 3u, 7u, 50u, 1000u}) {
    Scripted server(answers, step);
    for (size_t i = 0; i < answers.size(); ++i) {
      const Got got = get(client_of(server.port), "/x");
      ASSERT_TRUE(got.reply.ok()) << i << ' ' << got.reply.error().message;
      EXPECT_EQ(got.pieces, "data: a\n\n") << i;
      EXPECT_TRUE(got.reply->streamed);
    }
  }
}

TEST(HttpClient, ALongAnswerInOnePiece) {
  std::string text;
  while (text.size() < 1000000) text += fmt::format("data: {}\n\n", text.size());
  const std::string head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n";
  Scripted server({head + fmt::format("Content-Length: {}\r\n\r\n", text.size()) + text, "HTTP/1.1 400 Bad\r\n\r\n" + text});
  EXPECT_EQ(get(client_of(server.port), "/").pieces, text);
  const Got bad = get(client_of(server.port), "/");
  ASSERT_TRUE(bad.reply.ok());
  EXPECT_EQ(bad.reply->status, 400);
  EXPECT_EQ(bad.reply->body, text);
  EXPECT_EQ(server.heads.substr(0, 16), "GET / HTTP/1.1\r\n");
}

TEST(HttpClient, AnswersThatAreNone) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "without an answer"},
      {"SSH-2.0-x\r\n\r\n", "no HTTP"},
      {"HTTP/1.1 200 OK\r\nContent-Le", "broke off"},
      {"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", "broke off"},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nwhole\r\n", "broke off"},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", "no HTTP"},
      {"HTTP/1.1 200 OK\r\nX: " + std::string(70000, 'x'), "no HTTP"}};
  for (const auto& [answer, words] : cases) {
    Scripted server({answer});
    const Got got = get(client_of(server.port), "/");
    ASSERT_FALSE(got.reply.ok()) << answer.substr(0, 100);
    EXPECT_NE(got.reply.error().message.find(words), std::string::npos) << got.reply.error().message;
    EXPECT_EQ(got.reply.error().code, ErrorCode::kIo);
  }
}

TEST(HttpClient, NobodyIsThere) {
  int port = 0;
  {
    ScriptedRoutes script;
    port = started({}, script)->port();
  }
  const Got got = get(client_of(port), "/");
  ASSERT_FALSE(got.reply.ok());
  EXPECT_NE(got.reply.error().message.find("Connection refused"), std::string::npos);
  const Got unknown = get(client_of(80, "http", "no-such-host.invalid"), "/");
  ASSERT_FALSE(unknown.reply.ok());
  EXPECT_NE(unknown.reply.error().message.find("'no-such-host.invalid' is not known"), std::string::npos);
}

TEST(HttpClient, TlsOnlyWithATrustedCertificateOfThatHost) {
  ::signal(SIGPIPE, SIG_IGN);
  const SelfSigned files;
  ScriptedRoutes script;
  ServerOptions options;
  options.tls_certificate = files.certificate_path;
  options.tls_key = files.key_path;
  auto server = started(std::move(options), script);
  const int port = server->port();
  const Got good = get(client_of(port, "https", "localhost", files.certificate_path), "/stream?n=50&ms=1");
  ASSERT_TRUE(good.reply.ok()) << good.reply.error().message;
  EXPECT_NE(good.pieces.find(" 49\n\n"), std::string::npos);
  const auto refusal = [](const HttpClient& client) {
    const Got got = get(client, "/hello");
    return got.reply.ok() ? "no refusal" : got.reply.error().message;
  };
  EXPECT_NE(refusal(client_of(port, "https", "localhost")).find("TLS failed (self"), std::string::npos);
  const std::string other_host = refusal(client_of(port, "https", "127.0.0.1", files.certificate_path));
  EXPECT_NE(other_host.find("TLS failed (IP address mismatch)"), std::string::npos) << other_host;
  EXPECT_NE(refusal(client_of(port, "http", "localhost")).find("without an answer"), std::string::npos);
  ScriptedRoutes plain_script;
  auto plain = started({}, plain_script);
  const std::string no_tls = refusal(client_of(plain->port(), "https", "localhost", files.certificate_path));
  EXPECT_NE(no_tls.find("TLS failed"), std::string::npos) << no_tls;
  const auto missing = HttpClient::create(*parse_url("https://localhost", "--url"), "/nowhere.pem");
  ASSERT_FALSE(missing.ok());
  EXPECT_NE(missing.error().message.find("--ca-file: '/nowhere.pem'"), std::string::npos);
}

}  // namespace
}  // namespace perigee::serve
