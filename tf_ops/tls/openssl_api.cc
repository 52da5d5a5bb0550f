#include "tf_ops/tls/openssl_api.h"

#include <dlfcn.h>

#include <string>

namespace ring_keras::tls {
namespace {

constexpr char kLibrary[] = "libssl.so.3";

Status Unusable(const std::string& why) {
  return Status(
      StatusCode::kInternal, ErrorCode::kNoOpenSsl,
      StrCat("RING_KERAS_ENCRYPT=1 needs OpenSSL 3 (", kLibrary, "): ", why,
             ". Install it: `apt install libssl3`, `dnf install "
             "openssl-libs`, or, where the system has 1.1.1 only (RHEL 8, "
             "Ubuntu 20.04), `conda install 'openssl>=3'` in Python's own "
             "environment."));
}

// Looks functions up, and remembers the first that is missing.
class Symbols {
 public:
  explicit Symbols(void* library) : library_(library) {}

  // libcrypto is among what libssl needs, so it is searched too.
  template <typename Function>
  void Find(const char* name, Function** function) {
    *function = reinterpret_cast<Function*>(dlsym(library_, name));
    if (*function == nullptr && missing_.empty()) missing_ = name;
  }
  const std::string& missing() const { return missing_; }

 private:
  void* const library_;
  std::string missing_;
};

StatusOr<const Api*> Load() {
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return Unusable(dlerror());
  static Api api;
  Symbols symbols(library);
#define FIND(name) symbols.Find(#name, &api.name)
  FIND(TLS_method);
  FIND(SSL_CTX_new);
  FIND(SSL_CTX_ctrl);
  FIND(SSL_CTX_set_ciphersuites);
  FIND(SSL_CTX_set_num_tickets);
  FIND(SSL_CTX_set_psk_use_session_callback);
  FIND(SSL_CTX_set_psk_find_session_callback);
  FIND(SSL_SESSION_new);
  FIND(SSL_SESSION_free);
  FIND(SSL_SESSION_set1_master_key);
  FIND(SSL_SESSION_set_cipher);
  FIND(SSL_SESSION_set_protocol_version);
  FIND(SSL_CIPHER_find);
  FIND(SSL_new);
  FIND(SSL_free);
  FIND(SSL_set_ex_data);
  FIND(SSL_get_ex_data);
  FIND(SSL_set_bio);
  FIND(SSL_set_verify);
  FIND(SSL_set_accept_state);
  FIND(SSL_set_connect_state);
  FIND(SSL_set_read_ahead);
  FIND(SSL_set_default_read_buffer_len);
  FIND(SSL_do_handshake);
  FIND(SSL_session_reused);
  FIND(SSL_read_ex);
  FIND(SSL_write_ex);
  FIND(SSL_key_update);
  FIND(SSL_shutdown);
  FIND(SSL_get_error);
  FIND(BIO_get_new_index);
  FIND(BIO_meth_new);
  FIND(BIO_meth_set_write);
  FIND(BIO_meth_set_read);
  FIND(BIO_meth_set_ctrl);
  FIND(BIO_new);
  FIND(BIO_set_init);
  FIND(BIO_set_data);
  FIND(BIO_get_data);
  FIND(BIO_set_flags);
  FIND(BIO_clear_flags);
  FIND(ERR_clear_error);
  FIND(ERR_get_error);
  FIND(ERR_reason_error_string);
#undef FIND
  if (!symbols.missing().empty()) {
    return Unusable("it lacks " + symbols.missing());
  }
  return &api;
}

}  // namespace

StatusOr<const Api*> GetApi() {
  static const StatusOr<const Api*> api = Load();
  return api;
}

const char* LastReason(const Api& api) {
  const unsigned long error = api.ERR_get_error();
  const char* reason =
      error == 0 ? nullptr : api.ERR_reason_error_string(error);
  return reason == nullptr ? "no reason given" : reason;
}

}  // namespace ring_keras::tls
