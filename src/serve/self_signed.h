// What    For tests of TLS: a key and a certificate in files that go when it goes.
// Owner   serve, tests only.
// Threads One at a time in a process.
// Errors  Aborts.
#pragma once

#include <gtest/gtest.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <string>

#include "base/check.h"

namespace perigee::serve::testing {

// A key and a certificate for "localhost" that it signs itself.
class SelfSigned {
 public:
  SelfSigned() {
    EVP_PKEY* key = EVP_EC_gen("P-256");
    X509* certificate = X509_new();
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
    X509_gmtime_adj(X509_getm_notBefore(certificate), 0);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 86400);
    X509_set_pubkey(certificate, key);
    X509_NAME* name = X509_get_subject_name(certificate);
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>("localhost"), -1, -1, 0);
    X509_set_issuer_name(certificate, name);
    CHECK(X509_sign(certificate, key, EVP_sha256()) > 0);
    write(key_path, [&](FILE* file) { PEM_write_PrivateKey(file, key, nullptr, nullptr, 0, nullptr, nullptr); });
    write(certificate_path, [&](FILE* file) { PEM_write_X509(file, certificate); });
    X509_free(certificate);
    EVP_PKEY_free(key);
  }
  ~SelfSigned() {
    std::filesystem::remove(key_path);
    std::filesystem::remove(certificate_path);
  }
  const std::string stem = ::testing::TempDir() + "/self_signed_" + std::to_string(::getpid());
  const std::string key_path = stem + ".key";
  const std::string certificate_path = stem + ".crt";

 private:
  template <class Body>
  static void write(const std::string& path, const Body& body) {
    FILE* file = std::fopen(path.c_str(), "w");
    CHECK(file != nullptr);
    body(file);
    std::fclose(file);
  }
};

}  // namespace perigee::serve::testing
