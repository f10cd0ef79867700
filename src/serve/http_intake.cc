#include "serve/http_intake.h"

#include <fmt/format.h>

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <utility>

#include "serve/http_text.h"

namespace perigee::serve {
namespace {

namespace http = boost::beast::http;

std::string_view view(boost::beast::string_view text) { return {text.data(), text.size()}; }

bool is_letter(char c) { return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'); }

}  // namespace

struct Intake::Parser {
  http::request_parser<http::string_body> http;
};

Intake::Intake(const IntakeLimits& limits) : limits_(limits) {}
Intake::~Intake() = default;

void Intake::reset() {
  state_ = State::kIdle;
  parser_.reset();
  request_ = {};
  error_ = {};
  raw_path_.clear();
  has_body_ = http_1_0_ = keep_alive_ = expects_continue_ = false;
  body_bytes_ = 0;
}

void Intake::fail(int status, std::string message) {
  state_ = State::kBad;
  error_ = {status, std::move(message)};
}

bool Intake::received() const { return parser_ != nullptr && parser_->http.is_done(); }

size_t Intake::feed(std::string_view bytes) {
  size_t used = 0;
  if (state_ == State::kIdle) {
    while (used < bytes.size() && (bytes[used] == '\r' || bytes[used] == '\n')) ++used;  // left over by sloppy clients
    if (used == bytes.size()) return used;
    state_ = State::kHead;
    if (!is_letter(bytes[used])) {  // TLS on a plain port, for one: no need to wait for a whole head
      fail(400, "the request is not HTTP");
      return used;
    }
    parser_ = std::make_unique<Parser>();
    parser_->http.header_limit(static_cast<uint32_t>(limits_.head_bytes_max));
    parser_->http.body_limit(limits_.body_bytes_max);
  }
  while (state_ == State::kHead || state_ == State::kBody) {
    auto& parser = parser_->http;
    if (state_ == State::kBody && parser.is_done()) {
      request_.body = std::move(parser.get().body());
      state_ = State::kDone;
      break;
    }
    if (used == bytes.size()) break;
    boost::beast::error_code code;
    const std::string_view rest = bytes.substr(used);
    const size_t n = parser.put(boost::asio::buffer(rest.data(), rest.size()), code);
    used += n;
    if (state_ == State::kBody) body_bytes_ += n;
    if (code == http::error::header_limit) {
      fail(431, fmt::format("the headers are longer than {} bytes", limits_.head_bytes_max));
    } else if (code == http::error::body_limit) {
      fail(413, fmt::format("the body is longer than {} bytes", limits_.body_bytes_max));
    } else if (code && code != http::error::need_more) {
      fail(400, fmt::format("the request is malformed HTTP: {}", code.message()));
    } else if (state_ == State::kHead && parser.is_header_done()) {
      read_head();
      break;
    } else if (n == 0) {
      // Nothing but the line of a chunk's length can be waiting now.
      if (state_ == State::kBody && rest.size() > limits_.head_bytes_max) fail(400, "the line of a chunk's length is too long");
      break;
    }
  }
  return used;
}

bool Intake::read_headers() {
  const auto& message = parser_->http.get();
  int count = 0;
  int hosts = 0;
  for (const auto& field : message) {
    if (++count > limits_.headers_max) {
      fail(431, fmt::format("there are more than {} headers", limits_.headers_max));
      return false;
    }
    std::string& value = request_.headers[lower_case(view(field.name_string()))];
    if (!value.empty()) value += ", ";
    value += view(field.value());
    if (field.name() == http::field::host) ++hosts;
  }
  if (hosts > 1 || (hosts == 0 && !http_1_0_)) {
    fail(400, "the header Host must be there once");
    return false;
  }
  return true;
}

void Intake::read_head() {
  const auto& parser = parser_->http;
  const auto& message = parser.get();
  http_1_0_ = message.version() < 11;
  keep_alive_ = parser.keep_alive();
  request_.method = view(message.method_string());
  const std::string_view target = view(message.target());
  raw_path_ = target.substr(0, target.find('?'));
  if (!read_headers()) return;
  const auto coding = request_.headers.find("transfer-encoding");
  const bool coded = coding != request_.headers.end();
  // Beast looks at the last coding only; one before it would be left in the body.
  if (coded && (http_1_0_ || !parser.chunked() || !equal_ignoring_case(coding->second, "chunked")))
    return fail(400, "the header Transfer-Encoding must be 'chunked', in HTTP/1.1");
  if (coded && request_.headers.contains("content-length"))
    return fail(400, "the headers Content-Length and Transfer-Encoding exclude each other");
  auto parsed = parse_target(target);
  if (!parsed) return fail(400, "the request's path or query is malformed");
  request_.path = std::move(parsed->path);
  request_.query = std::move(parsed->query);
  has_body_ = parser.chunked() || parser.content_length().value_or(0) > 0;
  if (const auto it = request_.headers.find("expect"); it != request_.headers.end()) {
    if (!equal_ignoring_case(it->second, "100-continue")) return fail(417, "the header Expect must be '100-continue'");
    expects_continue_ = !http_1_0_ && has_body_;
  }
  // Only now: fields after a chunked body, which nobody asked for, must not have come among the headers.
  parser_->http.eager(true);
  state_ = State::kBody;
}

}  // namespace perigee::serve
