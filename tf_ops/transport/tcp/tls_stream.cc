#include "tf_ops/transport/tcp/tls_stream.h"

namespace ring_keras {

static_assert(tls::Session::kClosed == Stream::kClosed);

StatusOr<std::unique_ptr<TlsStream>> TlsStream::Create(
    std::unique_ptr<Stream> inner, tls::Role role, const std::string& key) {
  std::unique_ptr<TlsStream> stream(new TlsStream(std::move(inner)));
  Stream* const network = stream->inner_.get();
  tls::SessionOptions options;
  options.role = role;
  options.key = key;
  options.read_ahead = true;
  auto session = tls::Session::Create(
      options, {[network](const void* data, size_t nbytes) {
                  return network->TryWrite(data, nbytes);
                },
                [network](void* data, size_t nbytes) {
                  return network->TryRead(data, nbytes);
                }});
  RING_KERAS_RETURN_IF_ERROR(session.status());
  stream->session_ = std::move(session.value());
  return stream;
}

ssize_t TlsStream::TryWrite(const void* data, size_t nbytes) {
  const iovec part = {const_cast<void*>(data), nbytes};
  return TryGather(&part, 1);
}

ssize_t TlsStream::TryRead(void* data, size_t nbytes) {
  const iovec part = {data, nbytes};
  return TryScatter(&part, 1);
}

ssize_t TlsStream::TryGather(const iovec* parts, int part_count) {
  return session_->Write(parts, part_count);
}

ssize_t TlsStream::TryScatter(const iovec* parts, int part_count) {
  return session_->Read(parts, part_count);
}

Status TlsStream::end() const {
  // Of a network that ended the one below knows more.
  const Status below = inner_->end();
  if (below.ok() || (!session_->end().ok() && !session_->cut_off())) {
    return session_->end();
  }
  if (below.code() != StatusCode::kPeerLost) return below;
  return Status(below.code(), StrCat(below.message(),
                                     ", though the other end had not said "
                                     "under TLS that it closes it"));
}

void TlsStream::CloseForWriting() {
  session_->CloseForWriting();
  inner_->CloseForWriting();
}

}  // namespace ring_keras
