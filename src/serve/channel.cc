#include "serve/channel.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>

#include "base/check.h"

namespace perigee::serve {
namespace {

constexpr size_t kPiecesMax = 16;  // of one system call
constexpr std::string_view kHttp11 = "http/1.1";

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

Channel::Channel(int socket, const TlsContext* tls) : socket_(socket) {
  if (tls == nullptr) return;
  tls_.reset(SSL_new(tls->get()));
  CHECK(tls_ != nullptr);
  CHECK_EQ(SSL_set_fd(tls_.get(), socket), 1);
  SSL_set_accept_state(tls_.get());
}

bool Channel::handshake_done() const { return tls_ == nullptr || SSL_is_init_finished(tls_.get()) == 1; }

Channel::Outcome Channel::tls_outcome(int result) {
  if (result > 0) return {State::kDone, static_cast<size_t>(result)};
  const int code = SSL_get_error(tls_.get(), result);
  ERR_clear_error();
  switch (code) {
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
