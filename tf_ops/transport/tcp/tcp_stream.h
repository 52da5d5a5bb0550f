// A Stream over one connected TCP socket.
#ifndef RING_KERAS_TRANSPORT_TCP_TCP_STREAM_H_
#define RING_KERAS_TRANSPORT_TCP_TCP_STREAM_H_

#include <memory>
#include <string>
#include <utility>

#include "tf_ops/common/socket.h"
#include "tf_ops/common/status.h"
#include "tf_ops/common/store.h"
#include "tf_ops/transport/stream.h"
#include "tf_ops/transport/tcp/poller.h"

namespace ring_keras {

// How long a peer's host may not answer until it counts as cut off: longer than
// a rank may be silent for the store, whose word about a dead host comes first.
constexpr double kUnreachableAfterS = kHeartbeatTimeoutS + kBeyondHeartbeatS;
// How messages call that time.
inline std::string UnansweredFor(double unreachable_after_s) {
  return StrCat("the other host has not answered for ", unreachable_after_s,
                " s (RING_KERAS_HEARTBEAT_TIMEOUT_S and ", kBeyondHeartbeatS,
                " s)");
}

// Two things find a peer that has been cut off. While the stream is idle, as
// when this rank only waits to receive, the kernel probes the peer's and breaks
// the connection. While data are under way it does not probe, and would go on
// sending them for 15 minutes: CheckPeer() asks it for how long nothing has
// been acknowledged. (TCP_USER_TIMEOUT would do that too, but it also breaks
// the connection to a peer that answers and has no room, because it is busy.)
class TcpStream : public Stream {
 public:
  // `socket` is non-blocking, and both ends have proved who they are. `poller`
  // watches it, and outlives the stream.
  static StatusOr<std::unique_ptr<TcpStream>> Create(
      FileDescriptor socket, Poller& poller,
      double unreachable_after_s = kUnreachableAfterS);

  ssize_t TryWrite(const void* data, size_t nbytes) override;
  ssize_t TryRead(void* data, size_t nbytes) override;
  ssize_t TryGather(const iovec* parts, int part_count) override;
  ssize_t TryScatter(const iovec* parts, int part_count) override;
  void CheckPeer() override;
  Status end() const override { return end_; }
  std::pair<std::string, std::string> addresses() const override {
    return addresses_;
  }
  SentTraffic sent() const override;
  bool delivered() const override;
  void CloseForWriting() override;

 private:
  TcpStream(FileDescriptor socket, double unreachable_after_s);

  ssize_t Send(const iovec* parts, int part_count) const;
  bool IsUnreachable() const;
  Status DescribeError(int error) const;

  FileDescriptor socket_;
  const double unreachable_after_s_;
  const std::pair<std::string, std::string> addresses_;
  Readiness readiness_;
  // Why nothing can be written, 0 while it can. What the peer sent before may
  // still be there to read.
  int write_error_ = 0;
  Status end_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_TRANSPORT_TCP_TCP_STREAM_H_
