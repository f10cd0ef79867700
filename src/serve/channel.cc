#include "serve/channel.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>

#include "base/check.h"

namespace perigee::serve {
namespace {

constexpr size_t kPiecesMax = 16;  // of one system call
constexpr std::string_view kHttp11 = "http/1.1";
// Where systems other than Debian keep their authorities; OpenSSL is linked statically and knows Debian's place.
constexpr std::array kCaFiles = {"/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"};

std::string tls_reason() {
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  const char* text = ERR_reason_error_string(code);
  return text == nullptr ? "unknown reason" : text;
}

// Clients that offer several protocols are told that this is HTTP/1.1; those that do not offer it go on without an agreement.
int choose_protocol(SSL*, const unsigned char** chosen, unsigned char* chosen_bytes, const unsigned char* offered,
                    unsigned offered_bytes, void*) {
  for (unsigned at = 0; at < offered_bytes; at += 1u + offered[at]) {
    const std::string_view name(reinterpret_cast<const char*>(offered + at + 1), offered[at]);
    if (name != kHttp11) continue;
    *chosen = offered + at + 1;
    *chosen_bytes = offered[at];
    return SSL_TLSEXT_ERR_OK;
  }
  return SSL_TLSEXT_ERR_NOACK;
}

Channel::Outcome system_outcome(ssize_t result) {
  if (result > 0) return {Channel::State::kDone, static_cast<size_t>(result)};
  if (result == 0) return {Channel::State::kEnd, 0};
  return {Channel::State::kFailed, 0};
}

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK; }

}  // namespace

void TlsContext::Free::operator()(ssl_ctx_st* context) const { SSL_CTX_free(context); }
void Channel::Free::operator()(ssl_st* tls) const { SSL_free(tls); }

Result<std::shared_ptr<TlsContext>> TlsContext::load(const std::string& certificate, const std::string& key) {
  ERR_clear_error();
  std::shared_ptr<TlsContext> result(new TlsContext(SSL_CTX_new(TLS_server_method())));
  SSL_CTX* context = result->get();
  if (context == nullptr) return Error{ErrorCode::kInternal, "OpenSSL gives no TLS context: " + tls_reason()};
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  // Idle connections give their buffers back; a write that did not fit may come again from another address.
  SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_alpn_select_cb(context, choose_protocol, nullptr);
  if (SSL_CTX_use_certificate_chain_file(context, certificate.c_str()) != 1)
    return io_error("--ssl-certfile: '{}' is no PEM certificate that can be read ({})", certificate, tls_reason());
  if (SSL_CTX_use_PrivateKey_file(context, key.c_str(), SSL_FILETYPE_PEM) != 1)
    return io_error("--ssl-keyfile: '{}' is no PEM private key that can be read ({})", key, tls_reason());
  if (SSL_CTX_check_private_key(context) != 1)
    return invalid_argument("--ssl-keyfile: '{}' is not the key of the certificate '{}'", key, certificate);
  return result;
}

Result<std::shared_ptr<TlsContext>> TlsContext::trusting(const std::string& ca_file) {
  ERR_clear_error();
  std::shared_ptr<TlsContext> result(new TlsContext(SSL_CTX_new(TLS_client_method())));
  SSL_CTX* context = result->get();
  if (context == nullptr) return Error{ErrorCode::kInternal, "OpenSSL gives no TLS context: " + tls_reason()};
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  // What is not there is not trusted; the handshake will say so.
  SSL_CTX_set_default_verify_paths(context);
  for (const char* path : kCaFiles) {
    if (::access(path, R_OK) == 0) SSL_CTX_load_verify_locations(context, path, nullptr);
  }
  ERR_clear_error();
  if (!ca_file.empty() && SSL_CTX_load_verify_locations(context, ca_file.c_str(), nullptr) != 1)
    return io_error("--ca-file: '{}' is no PEM file of certificates that can be read ({})", ca_file, tls_reason());
  return result;
}

Channel::Channel(int socket, const TlsContext* tls) : socket_(socket) {
  if (tls == nullptr) return;
  tls_.reset(SSL_new(tls->get()));
  CHECK(tls_ != nullptr);
  CHECK_EQ(SSL_set_fd(tls_.get(), socket), 1);
  SSL_set_accept_state(tls_.get());
}

Channel::Channel(int socket, const TlsContext* tls, const std::string& host) : Channel(socket, tls) {
  if (tls == nullptr) return;
  SSL_set_connect_state(tls_.get());
  // Addresses stand in certificates as addresses, and are no names that a server could be asked for.
  if (X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(tls_.get()), host.c_str()) != 1) {
    CHECK_EQ(SSL_set1_host(tls_.get(), host.c_str()), 1);
    SSL_set_tlsext_host_name(tls_.get(), host.c_str());
  }
  ERR_clear_error();
}

bool Channel::handshake_done() const { return tls_ == nullptr || SSL_is_init_finished(tls_.get()) == 1; }

std::string Channel::tls_failure() const {
  if (tls_ == nullptr) return {};
  const long verified = SSL_get_verify_result(tls_.get());
  if (verified != X509_V_OK) return X509_verify_cert_error_string(verified);
  const unsigned long code = ERR_peek_error();
  if (code == 0 || ERR_GET_REASON(code) == SSL_R_UNEXPECTED_EOF_WHILE_READING) return {};
  const char* text = ERR_reason_error_string(code);
  return text == nullptr ? fmt::format("error {}", code) : text;
}

Channel::Outcome Channel::tls_outcome(int result) {
  if (result > 0) return {State::kDone, static_cast<size_t>(result)};
  switch (SSL_get_error(tls_.get(), result)) {  // leaves the reason where tls_failure() looks for it
    case SSL_ERROR_WANT_READ: return {State::kWantRead, 0};
    case SSL_ERROR_WANT_WRITE: return {State::kWantWrite, 0};
    case SSL_ERROR_ZERO_RETURN: return {State::kEnd, 0};
    default: return {State::kFailed, 0};
  }
}

Channel::Outcome Channel::read(std::span<char> into) {
  if (tls_ != nullptr) {
    ERR_clear_error();
    return tls_outcome(SSL_read(tls_.get(), into.data(), static_cast<int>(std::min<size_t>(into.size(), INT_MAX))));
  }
  ssize_t result = 0;
  do result = ::recv(socket_, into.data(), into.size(), 0);
  while (result < 0 && errno == EINTR);
  if (result < 0 && would_block()) return {State::kWantRead, 0};
  return system_outcome(result);
}

Channel::Outcome Channel::write(const std::vector<std::string>& pieces, size_t first, size_t offset) {
  if (tls_ != nullptr) {
    const std::string& piece = pieces[first];
    ERR_clear_error();
    return tls_outcome(SSL_write(tls_.get(), piece.data() + offset,
                                 static_cast<int>(std::min<size_t>(piece.size() - offset, INT_MAX))));
  }
  std::array<iovec, kPiecesMax> parts{};
  size_t count = 0;
  for (size_t i = first; i < pieces.size() && count < kPiecesMax; ++i, ++count, offset = 0)
    parts[count] = {const_cast<char*>(pieces[i].data()) + offset, pieces[i].size() - offset};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = count;
  ssize_t result = 0;
  do result = ::sendmsg(socket_, &message, MSG_NOSIGNAL);
  while (result < 0 && errno == EINTR);
  if (result < 0 && would_block()) return {State::kWantWrite, 0};
  return system_outcome(result);
}

void Channel::say_end() {
  if (tls_ == nullptr || !handshake_done()) return;
  ERR_clear_error();
  SSL_shutdown(tls_.get());
  ERR_clear_error();
}

}  // namespace perigee::serve
