#include "tf_ops/transport/tcp/tcp_stream.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>

namespace ring_keras {
namespace {

bool WouldBlock(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

}  // namespace

ssize_t TcpStream::TryWrite(const void* data, size_t nbytes) {
  if (nbytes == 0) return 0;
  const ssize_t count =
      send(socket_.get(), data, nbytes, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (count >= 0) return count;
  return WouldBlock(errno) ? 0 : kClosed;
}

ssize_t TcpStream::TryRead(void* data, size_t nbytes) {
  if (nbytes == 0) return 0;
  const ssize_t count = recv(socket_.get(), data, nbytes, MSG_DONTWAIT);
  if (count > 0) return count;
  if (count == 0) return kClosed;
  return WouldBlock(errno) ? 0 : kClosed;
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
