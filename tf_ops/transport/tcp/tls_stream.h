// A Stream whose bytes are encrypted and authenticated on another.
#ifndef RING_KERAS_TRANSPORT_TCP_TLS_STREAM_H_
#define RING_KERAS_TRANSPORT_TCP_TLS_STREAM_H_

#include <memory>
#include <string>
#include <utility>

#include "tf_ops/common/status.h"
#include "tf_ops/tls/tls_session.h"
#include "tf_ops/transport/stream.h"

namespace ring_keras {

// What is read is what the other end wrote, in order and whole, or the stream
// has ended.
class TlsStream : public Stream {
 public:
  // `key` is what both ends, and only they, have; one is the client. Nothing
  // moves until both have shown that they have it, for which Advance() is to be
  // called until established(). Error: Internal (there is no OpenSSL).
  static StatusOr<std::unique_ptr<TlsStream>> Create(
      std::unique_ptr<Stream> inner, tls::Role role, const std::string& key);

  bool established() const { return session_->established(); }

  ssize_t TryWrite(const void* data, size_t nbytes) override;
  ssize_t TryRead(void* data, size_t nbytes) override;
  ssize_t TryGather(const iovec* parts, int part_count) override;
  ssize_t TryScatter(const iovec* parts, int part_count) override;
  bool Advance() override { return session_->Advance(); }
  bool holds_back() const override { return session_->has_pending(); }
  void CheckPeer() override { inner_->CheckPeer(); }
  Status end() const override;
  std::pair<std::string, std::string> addresses() const override {
    return inner_->addresses();
  }
  // As encrypted.
  SentTraffic sent() const override { return inner_->sent(); }
  bool delivered() const override {
    return !session_->has_pending() && inner_->delivered();
  }
  void CloseForWriting() override;

 private:
  explicit TlsStream(std::unique_ptr<Stream> inner)
      : inner_(std::move(inner)) {}

  const std::unique_ptr<Stream> inner_;
  std::unique_ptr<tls::Session> session_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_TRANSPORT_TCP_TLS_STREAM_H_
