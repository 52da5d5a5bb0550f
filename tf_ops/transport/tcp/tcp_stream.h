// A Stream over one connected TCP socket.
#ifndef RING_KERAS_TRANSPORT_TCP_TCP_STREAM_H_
#define RING_KERAS_TRANSPORT_TCP_TCP_STREAM_H_

#include <memory>

#include "tf_ops/common/socket.h"
#include "tf_ops/common/status.h"
#include "tf_ops/transport/stream.h"
#include "tf_ops/transport/tcp/poller.h"

namespace ring_keras {

class TcpStream : public Stream {
 public:
  // `socket` is non-blocking, and both ends have proved who they are. `poller`
  // watches it, and outlives the stream.
  static StatusOr<std::unique_ptr<TcpStream>> Create(FileDescriptor socket,
                                                     Poller& poller);

  ssize_t TryWrite(const void* data, size_t nbytes) override;
  ssize_t TryRead(void* data, size_t nbytes) override;
  ssize_t TryGather(const iovec* parts, int part_count) override;
  ssize_t TryScatter(const iovec* parts, int part_count) override;
  bool delivered() const override;
  void CloseForWriting() override;

 private:
  explicit TcpStream(FileDescriptor socket) : socket_(std::move(socket)) {}

  FileDescriptor socket_;
  Readiness readiness_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_TRANSPORT_TCP_TCP_STREAM_H_
