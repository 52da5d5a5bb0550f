#include "tf_ops/transport/tcp/tcp_stream.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "tf_ops/transport/tcp/tcp_traffic.h"

namespace ring_keras {
namespace {

// How often the kernel must have tried again: once may be by chance, or because
// the whole machine was paused.
constexpr uint8_t kMinRetransmits = 2;

bool WouldBlock(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

size_t TotalBytes(const iovec* parts, int part_count) {
  size_t nbytes = 0;
  for (int i = 0; i < part_count; ++i) nbytes += parts[i].iov_len;
  return nbytes;
}

msghdr MessageOf(const iovec* parts, int part_count) {
  msghdr message = {};
  message.msg_iov = const_cast<iovec*>(parts);  // The kernel only reads it.
  message.msg_iovlen = part_count;
  return message;
}

}  // namespace

StatusOr<std::unique_ptr<TcpStream>> TcpStream::Create(
    FileDescriptor socket, Poller& poller, double unreachable_after_s) {
  std::unique_ptr<TcpStream> stream(
      new TcpStream(std::move(socket), unreachable_after_s));
  RING_KERAS_RETURN_IF_ERROR(
      poller.Watch(stream->socket_.get(), &stream->readiness_));
  return stream;
}

TcpStream::TcpStream(FileDescriptor socket, double unreachable_after_s)
    : socket_(std::move(socket)),
      unreachable_after_s_(unreachable_after_s),
      addresses_(LocalAddress(socket_.get()), PeerAddress(socket_.get())) {
  ProbeWhenIdle(socket_.get(), unreachable_after_s);
}

ssize_t TcpStream::TryWrite(const void* data, size_t nbytes) {
  const iovec part = {const_cast<void*>(data), nbytes};
  return TryGather(&part, 1);
}

ssize_t TcpStream::TryRead(void* data, size_t nbytes) {
  const iovec part = {data, nbytes};
  return TryScatter(&part, 1);
}

// What is taken or given short leaves nothing for the next call, until the
// kernel reports a change.
ssize_t TcpStream::TryGather(const iovec* parts, int part_count) {
  if (write_error_ != 0 || !end_.ok()) return kClosed;
  if (!readiness_.writable || TotalBytes(parts, part_count) == 0) return 0;
  const ssize_t count = Send(parts, part_count);
  if (count < 0) {
    if (errno == EINTR) return 0;
    if (!WouldBlock(errno)) {
      write_error_ = errno;
      return kClosed;
    }
  }
  // A short count of sendmsg() need not mean that the buffer is full.
  readiness_.writable = count >= 0;
  return count < 0 ? 0 : count;
}

ssize_t TcpStream::TryScatter(const iovec* parts, int part_count) {
  if (!end_.ok()) return kClosed;
  if (!readiness_.readable || TotalBytes(parts, part_count) == 0) return 0;
  msghdr message = MessageOf(parts, part_count);
  const ssize_t count = recvmsg(socket_.get(), &message, MSG_DONTWAIT);
  if (count < 0 && errno == EINTR) return 0;
  if (count == 0 || (count < 0 && !WouldBlock(errno))) {
    // The kernel tells an error once: if not here, when this rank wrote.
    const int error = write_error_ != 0 ? write_error_ : count < 0 ? errno : 0;
    end_ = DescribeError(error);
    return kClosed;
  }
  if (count < 0) {
    readiness_.readable = readiness_.hung_up;
    return 0;
  }
  // The end of the stream is announced once, maybe together with the last data.
  if (static_cast<size_t>(count) < TotalBytes(parts, part_count)) {
    readiness_.readable = readiness_.hung_up;
  }
  return count;
}

ssize_t TcpStream::Send(const iovec* parts, int part_count) const {
  constexpr int kFlags = MSG_NOSIGNAL | MSG_DONTWAIT;
  // The plain call is the cheaper one.
  if (part_count == 1) {
    return send(socket_.get(), parts[0].iov_base, parts[0].iov_len, kFlags);
  }
  const msghdr message = MessageOf(parts, part_count);
  return sendmsg(socket_.get(), &message, kFlags);
}

void TcpStream::CheckPeer() {
  if (end_.ok() && IsUnreachable()) end_ = DescribeError(ETIMEDOUT);
}

// Data, or probes for room, have been sent more than once, and no
// acknowledgement of anything came. A peer that has no room says so, and one
// that says nothing when it is probed in ever longer intervals is found by its
// own probes: its end is idle.
bool TcpStream::IsUnreachable() const {
  tcp_info info = {};
  socklen_t length = sizeof(info);
  if (getsockopt(socket_.get(), IPPROTO_TCP, TCP_INFO, &info, &length) != 0) {
    return false;
  }
  return std::max(info.tcpi_retransmits, info.tcpi_probes) >= kMinRetransmits &&
         info.tcpi_last_ack_recv >= unreachable_after_s_ * 1e3;
}

Status TcpStream::DescribeError(int error) const {
  if (error == 0) return Status(StatusCode::kPeerLost, "it was closed");
  if (error == ETIMEDOUT) {
    return Status(StatusCode::kDeadlineExceeded,
                  UnansweredFor(unreachable_after_s_));
  }
  return Status(StatusCode::kPeerLost, ErrnoMessage(error));
}

SentTraffic TcpStream::sent() const { return TrafficOf(socket_.get()); }

// A socket that is closed with input unread is reset, and what the peer has not
// acknowledged by then is lost.
bool TcpStream::delivered() const {
  int unacknowledged = 0;
  return ioctl(socket_.get(), SIOCOUTQ, &unacknowledged) != 0 ||
         unacknowledged == 0;
}

void TcpStream::CloseForWriting() { shutdown(socket_.get(), SHUT_WR); }

}  // namespace ring_keras
