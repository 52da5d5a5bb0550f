// A Stream through the inbox rings of two ranks of one host.
#ifndef RING_KERAS_TRANSPORT_SHM_RING_STREAM_H_
#define RING_KERAS_TRANSPORT_SHM_RING_STREAM_H_

#include "tf_ops/transport/shm/doorbell.h"
#include "tf_ops/transport/shm/segment.h"
#include "tf_ops/transport/stream.h"

namespace ring_keras {

// One reader and one writer per ring, without locks. Never reports kClosed: a
// process that dies cannot tell its rings; the store says who died.
class RingStream : public Stream {
 public:
  // Writes to `outbox` (in the peer's segment, whose doorbell `peer` is) and
  // reads from `inbox` (in ours). All outlive this.
  RingStream(InboxRing* outbox, InboxRing* inbox, RemoteDoorbell* peer)
      : outbox_(outbox), inbox_(inbox), peer_(peer) {}

  ssize_t TryWrite(const void* data, size_t nbytes) override;
  ssize_t TryRead(void* data, size_t nbytes) override;
  Status end() const override { return Status::Ok(); }
  bool delivered() const override { return true; }
  void CloseForWriting() override {}

 private:
  InboxRing* outbox_;
  InboxRing* inbox_;
  RemoteDoorbell* peer_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_TRANSPORT_SHM_RING_STREAM_H_
