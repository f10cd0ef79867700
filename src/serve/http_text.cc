#include "serve/http_text.h"

#include <openssl/rand.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <ctime>

#include "base/check.h"

namespace perigee::serve {
namespace {

constexpr size_t kRequestIdBytesMax = 128;

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

// Percent escapes; in a query `+` is a blank. A zero byte is refused: no path or name holds one.
std::optional<std::string> decode(std::string_view text, bool query) {
  std::string result;
  result.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '%') {
      if (i + 2 >= text.size()) return std::nullopt;
      const int high = hex_digit(text[i + 1]);
      const int low = hex_digit(text[i + 2]);
      if (high < 0 || low < 0 || high + low == 0) return std::nullopt;
      c = static_cast<char>(high * 16 + low);
      i += 2;
    } else if (query && c == '+') {
      c = ' ';
    }
    result += c;
  }
  return result;
}

bool decode_query(std::string_view text, std::map<std::string, std::string>& query) {
  while (!text.empty()) {
    const size_t end = std::min(text.find('&'), text.size());
    const std::string_view item = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (item.empty()) continue;
    const size_t equals = std::min(item.find('='), item.size());
    const auto name = decode(item.substr(0, equals), true);
    const auto value = decode(item.substr(std::min(equals + 1, item.size())), true);
    if (!name || !value) return false;
    query[*name] = *value;
  }
  return true;
}

}  // namespace

std::optional<Target> parse_target(std::string_view target) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (target.size() < scheme.size() || !equal_ignoring_case(target.substr(0, scheme.size()), scheme)) continue;
    const size_t slash = target.find('/', scheme.size());
    target = slash == std::string_view::npos ? std::string_view("/") : target.substr(slash);
    break;
  }
  if (target.empty() || (target[0] != '/' && target != "*")) return std::nullopt;
  target = target.substr(0, target.find('#'));
  const size_t mark = std::min(target.find('?'), target.size());
  const auto path = decode(target.substr(0, mark), false);
  Target result;
  if (!path || !decode_query(target.substr(std::min(mark + 1, target.size())), result.query)) return std::nullopt;
  result.path = *path;
  return result;
}

bool is_request_id(std::string_view id) {
  if (id.empty() || id.size() > kRequestIdBytesMax) return false;
  return std::all_of(id.begin(), id.end(), [](char c) { return c > ' ' && c < 0x7f && c != '"' && c != '\\'; });
}

std::string make_request_id() {
  std::array<unsigned char, 16> bytes{};
  CHECK_EQ(RAND_bytes(bytes.data(), static_cast<int>(bytes.size())), 1);
  std::string id;
  for (const unsigned char byte : bytes) fmt::format_to(std::back_inserter(id), "{:02x}", byte);
  return id;
}

std::string_view reason_phrase(int status) {
  switch (status) {
    case 200: return "OK";
    case 201: return "Created";
    case 202: return "Accepted";
    case 204: return "No Content";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 409: return "Conflict";
    case 413: return "Content Too Large";
    case 415: return "Unsupported Media Type";
    case 417: return "Expectation Failed";
    case 422: return "Unprocessable Content";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 500: return "Internal Server Error";
    case 501: return "Not Implemented";
    case 503: return "Service Unavailable";
    default: return status < 400 ? "OK" : "Error";
  }
}

std::string http_date() {
  // Once a second is enough, and thousands of heads a second share it.
  thread_local std::time_t last = 0;
  thread_local std::string text;
  const std::time_t now = std::time(nullptr);
  if (now != last) {
    std::tm parts{};
    gmtime_r(&now, &parts);
    std::array<char, 64> buffer{};
    text.assign(buffer.data(), std::strftime(buffer.data(), buffer.size(), "%a, %d %b %Y %H:%M:%S GMT", &parts));
    last = now;
  }
  return text;
}

void append_header(std::string& out, std::string_view name, std::string_view value) {
  out += name;
  out += ": ";
  for (const char c : value) out += static_cast<unsigned char>(c) < ' ' || c == 0x7f ? ' ' : c;
  out += "\r\n";
}

void append_chunk(std::string& out, std::string_view piece) {
  if (piece.empty()) return;
  std::array<char, 16> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), piece.size(), 16);
  out.append(digits.data(), end.ptr);
  out += "\r\n";
  out += piece;
  out += "\r\n";
}

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) { return lower(x) == lower(y); });
}

std::string lower_case(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(), lower);
  return result;
}

std::string media_type(std::string_view content_type) {
  content_type = content_type.substr(0, content_type.find(';'));
  const auto blank = [](char c) { return c == ' ' || c == '\t'; };
  while (!content_type.empty() && blank(content_type.front())) content_type.remove_prefix(1);
  while (!content_type.empty() && blank(content_type.back())) content_type.remove_suffix(1);
  return lower_case(content_type);
}

}  // namespace perigee::serve
