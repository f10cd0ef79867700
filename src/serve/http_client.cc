#include "serve/http_client.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <utility>

#include "serve/http_text.h"

namespace http = boost::beast::http;

namespace perigee::serve {
namespace {

constexpr int kConnectTime_ms = 20000;                // of one address; systems try for minutes
constexpr size_t kPieceBytes = 16384;                 // of one read
constexpr uint32_t kHeadBytesMax = 65536;
constexpr size_t kBodyBytesMax = size_t{64} << 20;    // of an answer that is kept whole

std::string system_reason(int code) { return std::strerror(code); }

class Socket {
 public:
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&&) = delete;
  ~Socket() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

enum class Wait { kReady, kCancelled, kTimeOut };

// Until the socket can do what `events` say. A negative time is endless.
Wait wait_for(int socket, short events, int cancel, int time_ms) {
  std::array<pollfd, 2> both = {pollfd{socket, events, 0}, pollfd{cancel, POLLIN, 0}};
  int ready = 0;
  do ready = ::poll(both.data(), both.size(), time_ms);
  while (ready < 0 && errno == EINTR);
  if (both[1].revents != 0) return Wait::kCancelled;
  return ready == 0 ? Wait::kTimeOut : Wait::kReady;
}

Error cancelled() { return io_error("the answer was broken off"); }

// One address: a connected socket, an errno value, or none when cancelled.
struct Attempt {
  std::optional<Socket> socket;
  int error = 0;
  bool cancelled = false;
};

Attempt connect_to(const addrinfo& address, int cancel) {
  Attempt attempt;
  Socket socket(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (socket.get() < 0) {
    attempt.error = errno;
    return attempt;
  }
  if (::connect(socket.get(), address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) {
      attempt.error = errno;
      return attempt;
    }
    const Wait waited = wait_for(socket.get(), POLLOUT, cancel, kConnectTime_ms);
    attempt.cancelled = waited == Wait::kCancelled;
    attempt.error = waited == Wait::kTimeOut ? ETIMEDOUT : 0;
    socklen_t size = sizeof(attempt.error);
    if (waited == Wait::kReady) ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &attempt.error, &size);
    if (attempt.cancelled || attempt.error != 0) return attempt;
  }
  const int on = 1;  // a server that dies without a word is noticed in the end
  ::setsockopt(socket.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  attempt.socket.emplace(std::move(socket));
  return attempt;
}

Result<Socket> connect_to(const Url& url, int cancel) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(url.port);
  int code = ::getaddrinfo(url.host.c_str(), port.c_str(), &hints, &found);
  // This name is the loopback by definition (RFC 6761), also where no file or name server says so.
  if (code != 0 && url.host == "localhost") code = ::getaddrinfo("127.0.0.1", port.c_str(), &hints, &found);
  if (code != 0) return io_error("{}: the host '{}' is not known ({})", url.text(), url.host, ::gai_strerror(code));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> addresses(found, &::freeaddrinfo);
  int error = 0;
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
    Attempt attempt = connect_to(*address, cancel);
    if (attempt.cancelled) return cancelled();
    if (attempt.socket.has_value()) return std::move(*attempt.socket);
    error = attempt.error;
  }
  return io_error("{}: no connection ({}); is the server running there?", url.text(), system_reason(error));
}

// One request and its answer on a connection.
class Connection {
 public:
  Connection(const Url& url, int socket, const TlsContext* tls, int cancel)
      : url_(url), socket_(socket), cancel_(cancel), channel_(socket, tls, url.host) {
    renew_parser();
  }

  Status send(std::string head, std::string body) {
    const std::vector<std::string> pieces = {std::move(head), std::move(body)};
    for (size_t piece = 0, offset = 0; piece < pieces.size();) {
      if (offset == pieces[piece].size()) {
        ++piece;
        offset = 0;
        continue;
      }
      const Channel::Outcome sent = channel_.write(pieces, piece, offset);
      if (sent.state == Channel::State::kDone) {
        offset += sent.bytes;  // perhaps into the next piece
        if (offset > pieces[piece].size()) offset -= pieces[piece++].size();
        continue;
      }
      const Status waited = wait(sent.state);
      if (!waited.ok()) return waited;
    }
    return {};
  }

  Result<ClientReply> receive(const HttpClient::OnPiece& on_piece) {
    while (!enough_ && !parser_->is_done()) {
      std::array<char, kPieceBytes> buffer;
      const Channel::Outcome got = channel_.read(buffer);
      if (got.state == Channel::State::kDone) {
        if (wait_for(-1, 0, cancel_, 0) == Wait::kCancelled) return cancelled();
        const Status parsed = parse(std::string_view(buffer.data(), got.bytes), on_piece);
        if (!parsed.ok()) return parsed.error();
      } else if (got.state == Channel::State::kEnd) {
        const Status ended = end();
        if (!ended.ok()) return ended.error();
      } else {
        const Status waited = wait(got.state);
        if (!waited.ok()) return waited.error();
      }
    }
    channel_.say_end();
    return std::move(reply_);
  }

 private:
  using Parser = http::parser<false, http::buffer_body>;

  void renew_parser() {
    parser_.emplace();
    parser_->eager(true);
    parser_->header_limit(kHeadBytesMax);
    parser_->body_limit(boost::none);  // streams have no length; what is kept is limited below
    read_head_ = false;
  }

  Status wait(Channel::State state) {
    if (state == Channel::State::kFailed || state == Channel::State::kEnd) return broken();
    const Wait waited = wait_for(socket_, state == Channel::State::kWantRead ? POLLIN : POLLOUT, cancel_, -1);
    return waited == Wait::kCancelled ? Status(cancelled()) : Status();
  }

  Error broken() const {
    const std::string why = channel_.tls_failure();
    if (!why.empty()) return io_error("{}: TLS failed ({})", url_.text(), why);
    if (!channel_.handshake_done()) return io_error("{}: the server ended the connection; does it speak TLS?", url_.text());
    return cut_off();
  }
  Error cut_off() const {
    if (held_.empty() && !read_head_) return io_error("{}: the server closed the connection without an answer", url_.text());
    return io_error("{}: the server's answer broke off before its end", url_.text());
  }

  // The peer closed its side in order: the end of an answer that has no other end.
  Status end() {
    boost::beast::error_code code;
    if (read_head_) parser_->put_eof(code);
    return read_head_ && !code ? Status() : Status(cut_off());
  }

  Status parse(std::string_view bytes, const HttpClient::OnPiece& on_piece) {
    held_ += bytes;
    size_t used = 0;
    while (used < held_.size() && !enough_ && !parser_->is_done()) {
      std::array<char, kPieceBytes> window;
      parser_->get().body().data = window.data();
      parser_->get().body().size = window.size();
      boost::beast::error_code code;
      const size_t n = parser_->put(boost::asio::buffer(held_.data() + used, held_.size() - used), code);
      used += n;
      const size_t made = window.size() - parser_->get().body().size;
      if (parser_->is_header_done() && !read_head_) read_head();
      const Status taken = take({window.data(), made}, on_piece);
      if (!taken.ok()) return taken;
      if (parser_->is_done() && reply_.status / 100 == 1) {  // an answer before the answer
        renew_parser();
        continue;
      }
      if (code == http::error::need_buffer) continue;  // the window is full
      if (code && code != http::error::need_more)
        return io_error("{}: the server's answer is no HTTP ({})", url_.text(), code.message());
      if (n == 0) break;
    }
    held_.erase(0, used);
    return {};
  }

  void read_head() {
    const auto& message = parser_->get();
    const auto value = [&](http::field field) {
      const auto text = message[field];
      return std::string(text.data(), text.size());
    };
    read_head_ = true;
    reply_.status = static_cast<int>(message.result_int());
    reply_.content_type = media_type(value(http::field::content_type));
    reply_.location = value(http::field::location);
    reply_.streamed = reply_.status == 200 && reply_.content_type == "text/event-stream";
  }

  Status take(std::string_view piece, const HttpClient::OnPiece& on_piece) {
    if (piece.empty()) return {};
    if (reply_.streamed) {
      enough_ = !on_piece(piece);
      return {};
    }
    if (reply_.body.size() + piece.size() > kBodyBytesMax)
      return io_error("{}: the server's answer is longer than {} bytes", url_.text(), kBodyBytesMax);
    reply_.body += piece;
    return {};
  }

  const Url& url_;
  const int socket_;
  const int cancel_;
  Channel channel_;
  std::optional<Parser> parser_;
  std::string held_;  // what the parser could not use yet
  ClientReply reply_;
  bool read_head_ = false;
  bool enough_ = false;
};

std::string head_of(const Url& url, const ClientRequest& request) {
  std::string head = fmt::format("{} {}{} HTTP/1.1\r\n", request.method, url.path, request.path);
  append_header(head, "Host", url.authority());
  append_header(head, "Connection", "close");
  for (const auto& [name, value] : request.headers) append_header(head, name, value);
  if (!request.body.empty()) {
    append_header(head, "Content-Type", "application/json");
    append_header(head, "Content-Length", std::to_string(request.body.size()));
  }
  return head + "\r\n";
}

Result<int> parse_port(std::string_view text, std::string_view what, std::string_view url) {
  int port = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), port);
  if (end.ec != std::errc() || end.ptr != text.data() + text.size() || port < 1 || port > 65535)
    return invalid_argument("{} is '{}'; its port must be a number from 1 to 65535", what, url);
  return port;
}

}  // namespace

std::string Url::authority() const {
  const std::string name = host.find(':') == std::string::npos ? host : '[' + host + ']';
  return port == (tls ? 443 : 80) ? name : fmt::format("{}:{}", name, port);
}

std::string Url::text() const { return (tls ? "https://" : "http://") + authority() + path; }

Result<Url> parse_url(std::string_view text, std::string_view what) {
  Url url;
  const size_t scheme = text.find("://");
  const std::string name = scheme == std::string_view::npos ? std::string() : lower_case(text.substr(0, scheme));
  if (name != "http" && name != "https") {
    return invalid_argument("{} is '{}'; it must begin with http:// or https://", what, text);
  }
  url.tls = name == "https";
  const bool plain = std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7f; });
  if (!plain || text.find_first_of("?#@\\\"<>") != std::string_view::npos) {
    return invalid_argument("{} is '{}'; it may hold a host, a port and a path, without user, query, fragment or blanks", what,
                            text);
  }
  std::string_view rest = text.substr(scheme + 3);
  const size_t slash = std::min(rest.find('/'), rest.size());
  url.path = rest.substr(slash);
  while (url.path.ends_with('/')) url.path.pop_back();
  rest = rest.substr(0, slash);
  size_t host_end = std::min(rest.find(':'), rest.size());
  url.host = rest.substr(0, host_end);
  if (rest.starts_with('[')) {
    const size_t bracket = rest.find(']');
    if (bracket == std::string_view::npos) return invalid_argument("{} is '{}'; a ] is missing after the address", what, text);
    url.host = rest.substr(1, bracket - 1);
    host_end = bracket + 1;
  }
  rest = rest.substr(host_end);
  if (url.host.empty()) return invalid_argument("{} is '{}'; it names no host", what, text);
  url.port = url.tls ? 443 : 80;
  if (rest.empty()) return url;
  const Result<int> port = parse_port(rest.substr(1), what, text);
  if (!port.ok()) return port.error();
  if (rest[0] != ':') return invalid_argument("{} is '{}'; after the address only a port may come", what, text);
  url.port = *port;
  return url;
}

Result<HttpClient> HttpClient::create(Url url, const std::string& ca_file) {
  if (!url.tls) return HttpClient(std::move(url), nullptr);
  Result<std::shared_ptr<TlsContext>> tls = TlsContext::trusting(ca_file);
  if (!tls.ok()) return tls.error();
  return HttpClient(std::move(url), std::move(*tls));
}

Result<ClientReply> HttpClient::send(const ClientRequest& request, const OnPiece& on_piece, int cancel) const {
  const Result<Socket> socket = connect_to(url_, cancel);
  if (!socket.ok()) return socket.error();
  Connection connection(url_, socket->get(), tls_.get(), cancel);
  const Status sent = connection.send(head_of(url_, request), request.body);
  // A server may refuse a request before it has read it all: then its answer says more than the broken connection.
  if (!sent.ok() && wait_for(socket->get(), 0, cancel, 0) == Wait::kCancelled) return sent.error();
  Result<ClientReply> reply = connection.receive(on_piece);
  return !reply.ok() && !sent.ok() ? Result<ClientReply>(sent.error()) : std::move(reply);
}

}  // namespace perigee::serve
