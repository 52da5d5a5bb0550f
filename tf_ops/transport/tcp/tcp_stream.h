// A Stream over one connected TCP socket.
#ifndef RING_KERAS_TRANSPORT_TCP_TCP_STREAM_H_
#define RING_KERAS_TRANSPORT_TCP_TCP_STREAM_H_

#include <utility>

#include "tf_ops/common/socket.h"
#include "tf_ops/transport/stream.h"

namespace ring_keras {

class TcpStream : public Stream {
 public:
  // `socket` is non-blocking, and both ends have proved who they are.
  explicit TcpStream(FileDescriptor socket) : socket_(std::move(socket)) {}

  ssize_t TryWrite(const void* data, size_t nbytes) override;
  ssize_t TryRead(void* data, size_t nbytes) override;
  int descriptor() const override { return socket_.get(); }
  bool delivered() const override;
  void CloseForWriting() override;

 private:
  FileDescriptor socket_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_TRANSPORT_TCP_TCP_STREAM_H_
