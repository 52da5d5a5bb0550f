// A Stream over a connection of a library's.
#ifndef RING_KERAS_TRANSPORT_LIBRARY_LIBRARY_STREAM_H_
#define RING_KERAS_TRANSPORT_LIBRARY_LIBRARY_STREAM_H_

#include <utility>

#include "tf_ops/transport/library/ring_keras_transport.h"
#include "tf_ops/transport/stream.h"

namespace ring_keras {

class LibraryStream : public Stream {
 public:
  // `connection` is one of the library's; both ends are about to be there.
  LibraryStream(const ring_keras_transport_calls& calls, void* connection)
      : calls_(calls), connection_(connection) {}
  ~LibraryStream() override { calls_.disconnect(connection_); }

  void* connection() const { return connection_; }

  ssize_t TryWrite(const void* data, size_t nbytes) override {
    const iovec part = {const_cast<void*>(data), nbytes};
    return TryGather(&part, 1);
  }
  ssize_t TryRead(void* data, size_t nbytes) override {
    const iovec part = {data, nbytes};
    return TryScatter(&part, 1);
  }
  ssize_t TryGather(const iovec* parts, int part_count) override;
  ssize_t TryScatter(const iovec* parts, int part_count) override;
  bool holds_back() const override { return !delivered(); }
  Status end() const override { return end_; }
  bool delivered() const override {
    return !end_.ok() || calls_.sent(connection_) != 0;
  }
  void CloseForWriting() override { calls_.finish(connection_); }

 private:
  void End();

  const ring_keras_transport_calls& calls_;
  void* const connection_;
  Status end_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_TRANSPORT_LIBRARY_LIBRARY_STREAM_H_
