#include "tf_ops/tls/tls_session.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tf_ops/tls/openssl_api.h"

namespace ring_keras::tls {
namespace {

// What is encrypted before the network is asked to take it, and what is read
// ahead of it: a few records for each system call, and still in the cache.
constexpr size_t kBatchBytes = size_t{64} << 10;

constexpr char kCipher[] = "TLS_AES_256_GCM_SHA384";
constexpr unsigned char kCipherNumber[] = {0x13, 0x02};
constexpr unsigned char kKeyName[] = "ring_keras";
constexpr size_t kKeyNameBytes = sizeof(kKeyName) - 1;
constexpr int kOwner = 0;  // OpenSSL leaves this place to applications.

Status Failed(const Api& api, const char* what) {
  return Status(StatusCode::kInternal,
                StrCat("OpenSSL, ", what, ": ", LastReason(api)));
}

}  // namespace

// What OpenSSL calls.
struct Session::Callbacks {
  static Session& OwnerOf(Ssl ssl) {
    return *static_cast<Session*>(
        GetApi().value()->SSL_get_ex_data(ssl, kOwner));
  }

  static SslSession MakeKey(Ssl ssl) {
    const Api& api = *GetApi().value();
    const std::string& key = OwnerOf(ssl).options_.key;
    SslSession session = api.SSL_SESSION_new();
    if (session == nullptr) return nullptr;
    const auto* bytes = reinterpret_cast<const unsigned char*>(key.data());
    if (api.SSL_SESSION_set1_master_key(session, bytes, key.size()) == 1 &&
        api.SSL_SESSION_set_cipher(
            session, api.SSL_CIPHER_find(ssl, kCipherNumber)) == 1 &&
        api.SSL_SESSION_set_protocol_version(session, kTls13) == 1) {
      return session;
    }
    api.SSL_SESSION_free(session);
    return nullptr;
  }

  static int UseKey(Ssl ssl, const void*, const unsigned char** name,
                    size_t* name_nbytes, SslSession* session) {
    *session = MakeKey(ssl);
    *name = kKeyName;
    *name_nbytes = kKeyNameBytes;
    return *session != nullptr ? 1 : 0;
  }

  static int FindKey(Ssl ssl, const unsigned char* name, size_t name_nbytes,
                     SslSession* session) {
    *session = nullptr;  // No such key: the handshake fails.
    if (name_nbytes == kKeyNameBytes &&
        std::memcmp(name, kKeyName, kKeyNameBytes) == 0) {
      *session = MakeKey(ssl);
    }
    return 1;
  }

  static int Write(Bio bio, const char* data, int nbytes) {
    auto& owner = *static_cast<Session*>(GetApi().value()->BIO_get_data(bio));
    owner.pending_.append(data, static_cast<size_t>(nbytes));
    return nbytes;
  }

  static int Read(Bio bio, char* data, int nbytes) {
    const Api& api = *GetApi().value();
    auto& owner = *static_cast<Session*>(api.BIO_get_data(bio));
    api.BIO_clear_flags(bio, kBioFlagsRetry);
    const ssize_t count =
        owner.network_.receive(data, static_cast<size_t>(nbytes));
    if (count > 0) return static_cast<int>(count);
    if (count < 0) {
      owner.network_ended_ = true;
      return 0;
    }
    api.BIO_set_flags(bio, kBioFlagsRetryRead);
    return -1;
  }

  static long Control(Bio, int what, long, void*) {
    return what == kBioControlFlush ? 1 : 0;
  }

  static StatusOr<BioMethod> MakeMethod(const Api& api) {
    BioMethod method = api.BIO_meth_new(
        api.BIO_get_new_index() | kBioTypeSourceSink, "ring_keras");
    if (method == nullptr || api.BIO_meth_set_write(method, &Write) != 1 ||
        api.BIO_meth_set_read(method, &Read) != 1 ||
        api.BIO_meth_set_ctrl(method, &Control) != 1) {
      return Failed(api, "preparing its input and output");
    }
    return method;
  }

  // It has no certificate, so a server cannot do without the key.
  static StatusOr<SslContext> MakeContext(const Api& api) {
    SslContext context = api.SSL_CTX_new(api.TLS_method());
    if (context == nullptr) return Failed(api, "preparing");
    const auto control = [&](int what, long number, const char* text) {
      return api.SSL_CTX_ctrl(context, what, number, const_cast<char*>(text)) >
             0;
    };
    const bool done =
        control(kControlMinVersion, kTls13, nullptr) &&
        control(kControlMaxVersion, kTls13, nullptr) &&
        control(kControlGroupsList, 0, "X25519") &&
        control(kControlMode,
                kModeEnablePartialWrite | kModeAcceptMovingWriteBuffer |
                    kModeReleaseBuffers,
                nullptr) &&
        api.SSL_CTX_set_ciphersuites(context, kCipher) == 1 &&
        api.SSL_CTX_set_num_tickets(context, 0) == 1;
    if (!done) return Failed(api, "choosing TLS 1.3 with AES-GCM and X25519");
    api.SSL_CTX_set_psk_use_session_callback(context, &UseKey);
    api.SSL_CTX_set_psk_find_session_callback(context, &FindKey);
    return context;
  }

  // Of the whole process, and to its end: threads may outlive main().
  static StatusOr<SslContext> GetContext(const Api& api) {
    static const StatusOr<SslContext> context = MakeContext(api);
    return context;
  }
  static StatusOr<BioMethod> GetMethod(const Api& api) {
    static const StatusOr<BioMethod> method = MakeMethod(api);
    return method;
  }
};

Status CheckAvailable() {
  const StatusOr<const Api*> api = GetApi();
  RING_KERAS_RETURN_IF_ERROR(api.status());
  return Session::Create({}, {}).status();
}

StatusOr<std::unique_ptr<Session>> Session::Create(
    const SessionOptions& options, Network network) {
  std::unique_ptr<Session> session(new Session(options, std::move(network)));
  RING_KERAS_RETURN_IF_ERROR(session->Init());
  return session;
}

Session::Session(const SessionOptions& options, Network network)
    : options_(options), network_(std::move(network)) {}

Session::~Session() {
  if (ssl_ != nullptr) GetApi().value()->SSL_free(ssl_);
}

Status Session::Init() {
  const StatusOr<const Api*> found = GetApi();
  RING_KERAS_RETURN_IF_ERROR(found.status());
  const Api& api = *found.value();
  api.ERR_clear_error();
  const auto context = Callbacks::GetContext(api);
  RING_KERAS_RETURN_IF_ERROR(context.status());
  const auto method = Callbacks::GetMethod(api);
  RING_KERAS_RETURN_IF_ERROR(method.status());
  ssl_ = api.SSL_new(context.value());
  if (ssl_ == nullptr) return Failed(api, "beginning a session");
  Bio bio = api.BIO_new(method.value());
  if (bio == nullptr) return Failed(api, "beginning a session");
  api.BIO_set_data(bio, this);
  api.BIO_set_init(bio, 1);
  api.SSL_set_bio(ssl_, bio, bio);  // Which owns it from here on.
  api.SSL_set_ex_data(ssl_, kOwner, this);
  if (options_.role == Role::kServer) {
    api.SSL_set_accept_state(ssl_);
  } else {
    api.SSL_set_connect_state(ssl_);
    // Against no authority: a server that shows a certificate, and not that it
    // has the key, is refused.
    api.SSL_set_verify(ssl_, kVerifyPeer, nullptr);
  }
  if (options_.read_ahead) {
    api.SSL_set_read_ahead(ssl_, 1);
    api.SSL_set_default_read_buffer_len(ssl_, kBatchBytes);
  }
  return Status::Ok();
}

bool Session::Advance() {
  const bool was_established = established_;
  const size_t before = pending_begin_;
  const bool was_pending = has_pending();
  if (!established_ && end_.ok()) Handshake();
  Flush();
  return established_ != was_established ||
         (was_pending && (pending_begin_ != before || !has_pending()));
}

void Session::Handshake() {
  const Api& api = *GetApi().value();
  api.ERR_clear_error();
  const int result = api.SSL_do_handshake(ssl_);
  if (result != 1) {
    Judge(result);
  } else if (api.SSL_session_reused(ssl_) != 1) {
    // What OpenSSL calls a session that rests on a key that both had before.
    end_ = Status(StatusCode::kUnauthenticated,
                  "TLS was agreed on without the job's secret");
  } else {
    established_ = true;
  }
}

ssize_t Session::Write(const iovec* parts, int part_count) {
  if (!end_.ok() || closed_for_writing_ || network_broken_) return kClosed;
  if (!established_) return 0;
  Flush();
  if (network_broken_) return kClosed;
  if (has_pending()) return 0;
  pending_.reserve(kBatchBytes + kBatchBytes / 8);
  // Whole records from where they lie; what is shorter is put together.
  char record[kRecordBytes];
  size_t filled = 0;
  size_t taken = 0;
  for (int i = 0; i < part_count && taken < kBatchBytes; ++i) {
    const char* data = static_cast<const char*>(parts[i].iov_base);
    size_t left = parts[i].iov_len;
    while (left > 0 && taken < kBatchBytes) {
      const size_t step = std::min(left, kRecordBytes - filled);
      if (step == kRecordBytes) {
        if (!Seal(data, step)) return kClosed;
      } else {
        std::memcpy(record + filled, data, step);
        filled += step;
        if (filled == kRecordBytes) {
          if (!Seal(record, filled)) return kClosed;
          filled = 0;
        }
      }
      data += step;
      left -= step;
      taken += step;
    }
  }
  if (filled > 0 && !Seal(record, filled)) return kClosed;
  Flush();
  return static_cast<ssize_t>(taken);
}

bool Session::Seal(const void* data, size_t nbytes) {
  const Api& api = *GetApi().value();
  api.ERR_clear_error();
  if (records_ >= options_.max_records_per_key) {
    if (api.SSL_key_update(ssl_, kKeyUpdateNotRequested) != 1) {
      end_ = Failed(api, "changing the key");
      return false;
    }
    records_ = 0;
  }
  // The network is a buffer here, which has always room.
  size_t count = 0;
  const int result = api.SSL_write_ex(ssl_, data, nbytes, &count);
  if (result == 1 && count == nbytes) {
    ++records_;
    return true;
  }
  Judge(result);
  if (end_.ok()) {
    end_ = Status(StatusCode::kInternal, "OpenSSL did not encrypt a record");
  }
  return false;
}

ssize_t Session::Read(const iovec* parts, int part_count) {
  if (!end_.ok()) return kClosed;
  if (!established_) return 0;
  const Api& api = *GetApi().value();
  api.ERR_clear_error();
  size_t got = 0;
  bool more = true;
  for (int i = 0; i < part_count && more; ++i) {
    char* data = static_cast<char*>(parts[i].iov_base);
    size_t left = parts[i].iov_len;
    while (left > 0 && more) {
      size_t count = 0;
      const int result = api.SSL_read_ex(ssl_, data, left, &count);
      if (result != 1) {
        Judge(result);
        more = false;
        break;
      }
      data += count;
      left -= count;
      got += count;
      more = options_.read_ahead && got < kBatchBytes;
    }
  }
  Flush();  // An alert, that tells the other end why.
  if (got > 0) return static_cast<ssize_t>(got);
  return end_.ok() ? 0 : kClosed;
}

void Session::Judge(int result) {
  const Api& api = *GetApi().value();
  const int error = api.SSL_get_error(ssl_, result);
  if (error == kErrorWantRead || error == kErrorWantWrite) return;
  if (error == kErrorZeroReturn) {
    end_ = Status(StatusCode::kPeerLost, "it was closed");
  } else if (network_ended_) {
    cut_off_ = true;
    end_ = Status(StatusCode::kPeerLost, "it was cut off");
  } else if (established_) {
    end_ = Status(StatusCode::kUnauthenticated, ErrorCode::kChangedOnItsWay,
                  StrCat("what came is not what was sent, so it was changed on "
                         "its way (TLS: ",
                         LastReason(api), ")"));
  } else {
    end_ = Status(StatusCode::kUnauthenticated,
                  StrCat("TLS could not be agreed on: the other end does not "
                         "hold the job's secret, or what was sent was changed "
                         "on its way (TLS: ",
                         LastReason(api), ")"));
  }
  api.ERR_clear_error();
}

void Session::Flush() {
  while (has_pending() && !network_broken_) {
    const ssize_t count = network_.send(pending_.data() + pending_begin_,
                                        pending_.size() - pending_begin_);
    if (count == 0) return;
    if (count < 0) {
      // What the other end sent before may still be there to read.
      network_broken_ = true;
    } else {
      pending_begin_ += static_cast<size_t>(count);
    }
  }
  // Sessions of a large job are many, and idle most of the time.
  std::string().swap(pending_);
  pending_begin_ = 0;
}

void Session::CloseForWriting() {
  if (closed_for_writing_) return;
  closed_for_writing_ = true;
  if (established_ && end_.ok()) {
    const Api& api = *GetApi().value();
    api.ERR_clear_error();
    api.SSL_shutdown(ssl_);
    api.ERR_clear_error();
  }
  Flush();
}

}  // namespace ring_keras::tls
