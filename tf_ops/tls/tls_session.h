// One end of a TLS 1.3 connection whose two ends share a key.
//
// OpenSSL does the work: TLS_AES_256_GCM_SHA384, the key as an external
// pre-shared one, together with an X25519 exchange, so that who learns the key
// later cannot read what was recorded. There are no certificates: an end that
// has not the key is refused, whatever else it shows. Nothing waits: bytes are
// taken from the network, and given to it, as far as it goes.
#ifndef RING_KERAS_TLS_TLS_SESSION_H_
#define RING_KERAS_TLS_TLS_SESSION_H_

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "tf_ops/common/export.h"
#include "tf_ops/common/status.h"

namespace ring_keras::tls {

// What TLS encrypts at once, at most.
constexpr size_t kRecordBytes = size_t{16} << 10;

// AES-GCM must not go on with one key for ever: RFC 8446 allows 2^24.5 records.
constexpr uint64_t kMaxRecordsPerKey = uint64_t{1} << 23;

// Whether there can be sessions. Error: Internal, which says what to install.
RING_KERAS_EXPORT Status CheckAvailable();

enum class Role { kClient, kServer };

// What a session speaks through. Each returns how many bytes it moved, 0 if
// none can be now, negative if none ever will.
struct Network {
  std::function<ssize_t(const void* data, size_t nbytes)> send;
  std::function<ssize_t(void* data, size_t nbytes)> receive;
};

struct SessionOptions {
  Role role = Role::kClient;  // One end has each.
  std::string key;            // 32 bytes or more, the same at both ends.
  // Reads large pieces of the network. What has been read can then be more than
  // Read() was asked for, with nothing left that a poll() would see.
  bool read_ahead = false;
  uint64_t max_records_per_key = kMaxRecordsPerKey;
};

// Not thread-safe.
class RING_KERAS_EXPORT Session {
 public:
  static constexpr ssize_t kClosed = -1;

  // Error: Internal, see CheckAvailable().
  static StatusOr<std::unique_ptr<Session>> Create(
      const SessionOptions& options, Network network);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Goes on with the handshake, and with sending; whether anything moved that
  // matters to the caller. To be called whenever the network may have changed.
  bool Advance();

  // Both ends have shown that they hold the key.
  bool established() const { return established_; }

  // Takes bytes from the pieces of memory, one after the other, and encrypts
  // them; how many. 0: not now. kClosed: never more.
  ssize_t Write(const iovec* parts, int part_count);
  // The same for bytes that came, decrypted and found to be what was sent.
  // Without `read_ahead` a buffer of kRecordBytes leaves nothing behind.
  ssize_t Read(const iovec* parts, int part_count);

  // Something is encrypted that the network has not taken yet.
  bool has_pending() const { return pending_begin_ < pending_.size(); }

  // Tells the other end that nothing will follow.
  void CloseForWriting();

  // Why nothing more can be read; Ok while it can. PeerLost: the other end has
  // said that nothing follows, or `cut_off`. Unauthenticated: it is not who it
  // should be, or what came is not what it sent.
  const Status& end() const { return end_; }
  // The network ended before the other end had said so.
  bool cut_off() const { return cut_off_; }

 private:
  struct Callbacks;

  Session(const SessionOptions& options, Network network);
  Status Init();
  void Handshake();
  void Flush();
  bool Seal(const void* data, size_t nbytes);
  // Notes why a call of OpenSSL's failed, if it was not for lack of bytes.
  void Judge(int result);

  const SessionOptions options_;
  const Network network_;
  void* ssl_ = nullptr;
  bool established_ = false;
  bool network_ended_ = false;   // For reading.
  bool network_broken_ = false;  // For writing.
  bool closed_for_writing_ = false;
  bool cut_off_ = false;
  uint64_t records_ = 0;  // Encrypted with the present key.
  std::string pending_;
  size_t pending_begin_ = 0;
  Status end_;
};

}  // namespace ring_keras::tls

#endif  // RING_KERAS_TLS_TLS_SESSION_H_
