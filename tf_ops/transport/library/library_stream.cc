#include "tf_ops/transport/library/library_stream.h"

namespace ring_keras {

static_assert(RING_KERAS_TRANSPORT_CLOSED == Stream::kClosed);

ssize_t LibraryStream::TryGather(const iovec* parts, int part_count) {
  if (!end_.ok()) return kClosed;
  // What the peer sent before may still be there to read.
  return calls_.send(connection_, parts, part_count);
}

ssize_t LibraryStream::TryScatter(const iovec* parts, int part_count) {
  if (!end_.ok()) return kClosed;
  const ssize_t count = calls_.receive(connection_, parts, part_count);
  if (count == kClosed) End();
  return count;
}

void LibraryStream::End() {
  const char* why = calls_.failure(connection_);
  end_ = Status(StatusCode::kPeerLost, why == nullptr ? "it was closed" : why);
}

}  // namespace ring_keras
