// Our declarations of OpenSSL's functions and numbers, compared with its own.
// That this file compiles is the test.
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include "tests/cpp/support/same_abi.h"
#include "tests/cpp/support/test.h"
#include "tf_ops/tls/openssl_api.h"

namespace ring_keras::testing {
namespace {

#define CHECK_OPENSSL(name) \
  static_assert(SameAbi<decltype(tls::Api::name), decltype(&::name)>(), #name)

CHECK_OPENSSL(TLS_method);
CHECK_OPENSSL(SSL_CTX_new);
CHECK_OPENSSL(SSL_CTX_ctrl);
CHECK_OPENSSL(SSL_CTX_set_ciphersuites);
CHECK_OPENSSL(SSL_CTX_set_num_tickets);
CHECK_OPENSSL(SSL_CTX_set_psk_use_session_callback);
CHECK_OPENSSL(SSL_CTX_set_psk_find_session_callback);
CHECK_OPENSSL(SSL_SESSION_new);
CHECK_OPENSSL(SSL_SESSION_free);
CHECK_OPENSSL(SSL_SESSION_set1_master_key);
CHECK_OPENSSL(SSL_SESSION_set_cipher);
CHECK_OPENSSL(SSL_SESSION_set_protocol_version);
CHECK_OPENSSL(SSL_CIPHER_find);
CHECK_OPENSSL(SSL_new);
CHECK_OPENSSL(SSL_free);
CHECK_OPENSSL(SSL_set_ex_data);
CHECK_OPENSSL(SSL_get_ex_data);
CHECK_OPENSSL(SSL_set_bio);
CHECK_OPENSSL(SSL_set_verify);
CHECK_OPENSSL(SSL_set_accept_state);
CHECK_OPENSSL(SSL_set_connect_state);
CHECK_OPENSSL(SSL_set_read_ahead);
CHECK_OPENSSL(SSL_set_default_read_buffer_len);
CHECK_OPENSSL(SSL_do_handshake);
CHECK_OPENSSL(SSL_session_reused);
CHECK_OPENSSL(SSL_read_ex);
CHECK_OPENSSL(SSL_write_ex);
CHECK_OPENSSL(SSL_key_update);
CHECK_OPENSSL(SSL_shutdown);
CHECK_OPENSSL(SSL_get_error);
CHECK_OPENSSL(BIO_get_new_index);
CHECK_OPENSSL(BIO_meth_new);
CHECK_OPENSSL(BIO_meth_set_write);
CHECK_OPENSSL(BIO_meth_set_read);
CHECK_OPENSSL(BIO_meth_set_ctrl);
CHECK_OPENSSL(BIO_new);
CHECK_OPENSSL(BIO_set_init);
CHECK_OPENSSL(BIO_set_data);
CHECK_OPENSSL(BIO_get_data);
CHECK_OPENSSL(BIO_set_flags);
CHECK_OPENSSL(BIO_clear_flags);
CHECK_OPENSSL(ERR_clear_error);
CHECK_OPENSSL(ERR_get_error);
CHECK_OPENSSL(ERR_reason_error_string);

static_assert(tls::kErrorWantRead == SSL_ERROR_WANT_READ);
static_assert(tls::kErrorWantWrite == SSL_ERROR_WANT_WRITE);
static_assert(tls::kErrorZeroReturn == SSL_ERROR_ZERO_RETURN);
static_assert(tls::kControlMode == SSL_CTRL_MODE);
static_assert(tls::kControlGroupsList == SSL_CTRL_SET_GROUPS_LIST);
static_assert(tls::kControlMinVersion == SSL_CTRL_SET_MIN_PROTO_VERSION);
static_assert(tls::kControlMaxVersion == SSL_CTRL_SET_MAX_PROTO_VERSION);
static_assert(tls::kModeEnablePartialWrite == SSL_MODE_ENABLE_PARTIAL_WRITE);
static_assert(tls::kModeAcceptMovingWriteBuffer ==
              SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
static_assert(tls::kModeReleaseBuffers == SSL_MODE_RELEASE_BUFFERS);
static_assert(tls::kTls13 == TLS1_3_VERSION);
static_assert(tls::kVerifyPeer == SSL_VERIFY_PEER);
static_assert(tls::kKeyUpdateNotRequested == SSL_KEY_UPDATE_NOT_REQUESTED);
static_assert(tls::kBioTypeSourceSink == BIO_TYPE_SOURCE_SINK);
static_assert(tls::kBioControlFlush == BIO_CTRL_FLUSH);
static_assert(tls::kBioFlagsRetryRead ==
              (BIO_FLAGS_READ | BIO_FLAGS_SHOULD_RETRY));
static_assert(tls::kBioFlagsRetry == (BIO_FLAGS_RWS | BIO_FLAGS_SHOULD_RETRY));

RING_TEST(OpensslIsWhatItsHeadersSay) { EXPECT_OK(tls::GetApi().status()); }

}  // namespace
}  // namespace ring_keras::testing
