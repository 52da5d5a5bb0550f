// The part of OpenSSL 3's interface that we use, declared by ourselves so that
// it is not needed to build; tests/cpp/tls/openssl_declarations_test.cc
// compares the declarations with OpenSSL's where its headers are installed.
#ifndef RING_KERAS_TLS_OPENSSL_API_H_
#define RING_KERAS_TLS_OPENSSL_API_H_

#include <cstddef>
#include <cstdint>

#include "tf_ops/common/status.h"

namespace ring_keras::tls {

// OpenSSL's types, which only it looks into.
using Ssl = void*;         // SSL*
using SslContext = void*;  // SSL_CTX*
using SslSession = void*;  // SSL_SESSION*
using Bio = void*;         // BIO*
using BioMethod = void*;   // BIO_METHOD*

// What SSL_get_error() says.
constexpr int kErrorWantRead = 2;
constexpr int kErrorWantWrite = 3;
constexpr int kErrorZeroReturn = 6;
// Controls of contexts that are macros in C, and their values.
constexpr int kControlMode = 33;
constexpr int kControlGroupsList = 92;
constexpr int kControlMinVersion = 123;
constexpr int kControlMaxVersion = 124;
constexpr long kModeEnablePartialWrite = 0x1;
constexpr long kModeAcceptMovingWriteBuffer = 0x2;
constexpr long kModeReleaseBuffers = 0x10;
constexpr int kTls13 = 0x0304;
constexpr int kVerifyPeer = 1;
constexpr int kKeyUpdateNotRequested = 0;
// Of streams of bytes (BIO).
constexpr int kBioTypeSourceSink = 0x0400;
constexpr int kBioControlFlush = 11;
constexpr int kBioFlagsRetryRead = 0x1 | 0x8;
constexpr int kBioFlagsRetry = 0x1 | 0x2 | 0x4 | 0x8;

// Functions are named as in OpenSSL.
struct Api {
  const void* (*TLS_method)();
  SslContext (*SSL_CTX_new)(const void* method);
  long (*SSL_CTX_ctrl)(SslContext context, int control, long number,
                       void* pointer);
  int (*SSL_CTX_set_ciphersuites)(SslContext context, const char* names);
  int (*SSL_CTX_set_num_tickets)(SslContext context, size_t count);
  void (*SSL_CTX_set_psk_use_session_callback)(
      SslContext context,
      int (*callback)(Ssl ssl, const void* digest, const unsigned char** name,
                      size_t* name_nbytes, SslSession* session));
  void (*SSL_CTX_set_psk_find_session_callback)(
      SslContext context,
      int (*callback)(Ssl ssl, const unsigned char* name, size_t name_nbytes,
                      SslSession* session));

  SslSession (*SSL_SESSION_new)();
  void (*SSL_SESSION_free)(SslSession session);
  int (*SSL_SESSION_set1_master_key)(SslSession session,
                                     const unsigned char* key, size_t nbytes);
  int (*SSL_SESSION_set_cipher)(SslSession session, const void* cipher);
  int (*SSL_SESSION_set_protocol_version)(SslSession session, int version);
  const void* (*SSL_CIPHER_find)(Ssl ssl, const unsigned char* number);

  Ssl (*SSL_new)(SslContext context);
  void (*SSL_free)(Ssl ssl);
  int (*SSL_set_ex_data)(Ssl ssl, int index, void* data);
  void* (*SSL_get_ex_data)(const void* ssl, int index);
  void (*SSL_set_bio)(Ssl ssl, Bio input, Bio output);
  void (*SSL_set_verify)(Ssl ssl, int mode, int (*callback)(int, void*));
  void (*SSL_set_accept_state)(Ssl ssl);
  void (*SSL_set_connect_state)(Ssl ssl);
  void (*SSL_set_read_ahead)(Ssl ssl, int on);
  void (*SSL_set_default_read_buffer_len)(Ssl ssl, size_t nbytes);
  int (*SSL_do_handshake)(Ssl ssl);
  int (*SSL_session_reused)(const void* ssl);
  int (*SSL_read_ex)(Ssl ssl, void* data, size_t nbytes, size_t* count);
  int (*SSL_write_ex)(Ssl ssl, const void* data, size_t nbytes, size_t* count);
  int (*SSL_key_update)(Ssl ssl, int kind);
  int (*SSL_shutdown)(Ssl ssl);
  int (*SSL_get_error)(const void* ssl, int result);

  int (*BIO_get_new_index)();
  BioMethod (*BIO_meth_new)(int type, const char* name);
  int (*BIO_meth_set_write)(BioMethod method,
                            int (*write)(Bio bio, const char* data,
                                         int nbytes));
  int (*BIO_meth_set_read)(BioMethod method,
                           int (*read)(Bio bio, char* data, int nbytes));
  int (*BIO_meth_set_ctrl)(BioMethod method,
                           long (*control)(Bio bio, int what, long number,
                                           void* pointer));
  Bio (*BIO_new)(const void* method);
  void (*BIO_set_init)(Bio bio, int on);
  void (*BIO_set_data)(Bio bio, void* data);
  void* (*BIO_get_data)(Bio bio);
  void (*BIO_set_flags)(Bio bio, int flags);
  void (*BIO_clear_flags)(Bio bio, int flags);

  void (*ERR_clear_error)();
  unsigned long (*ERR_get_error)();
  const char* (*ERR_reason_error_string)(unsigned long error);
};

// OpenSSL, opened by the first call; any thread. The copy that the process has
// loaded, if there is one (Python's), else the machine's. Internal: there is no
// version 3; the same answer to every call.
StatusOr<const Api*> GetApi();

// Why the last call of this thread failed, in OpenSSL's words.
const char* LastReason(const Api& api);

}  // namespace ring_keras::tls

#endif  // RING_KERAS_TLS_OPENSSL_API_H_
