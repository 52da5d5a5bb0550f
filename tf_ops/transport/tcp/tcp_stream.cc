#include "tf_ops/transport/tcp/tcp_stream.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>

namespace ring_keras {
namespace {

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

StatusOr<std::unique_ptr<TcpStream>> TcpStream::Create(FileDescriptor socket,
                                                       Poller& poller) {
  std::unique_ptr<TcpStream> stream(new TcpStream(std::move(socket)));
  RING_KERAS_RETURN_IF_ERROR(
      poller.Watch(stream->socket_.get(), &stream->readiness_));
  return stream;
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
  if (!readiness_.writable || TotalBytes(parts, part_count) == 0) return 0;
  const msghdr message = MessageOf(parts, part_count);
  const ssize_t count =
      sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (count < 0) {
    if (errno == EINTR) return 0;
    if (!WouldBlock(errno)) return kClosed;
  }
  // A short count of sendmsg() need not mean that the buffer is full.
  readiness_.writable = count >= 0;
  return count < 0 ? 0 : count;
}

ssize_t TcpStream::TryScatter(const iovec* parts, int part_count) {
  if (!readiness_.readable || TotalBytes(parts, part_count) == 0) return 0;
  msghdr message = MessageOf(parts, part_count);
  const ssize_t count = recvmsg(socket_.get(), &message, MSG_DONTWAIT);
  if (count == 0) return kClosed;
  if (count < 0) {
    if (errno == EINTR) return 0;
    if (!WouldBlock(errno)) return kClosed;
    readiness_.readable = readiness_.hung_up;
    return 0;
  }
  // The end of the stream is announced once, maybe together with the last data.
  if (static_cast<size_t>(count) < TotalBytes(parts, part_count)) {
    readiness_.readable = readiness_.hung_up;
  }
  return count;
}

// A socket that is closed with input unread is reset, and what the peer has not
// acknowledged by then is lost.
bool TcpStream::delivered() const {
  int unacknowledged = 0;
  return ioctl(socket_.get(), SIOCOUTQ, &unacknowledged) != 0 ||
         unacknowledged == 0;
}

void TcpStream::CloseForWriting() { shutdown(socket_.get(), SHUT_WR); }

}  // namespace ring_keras
