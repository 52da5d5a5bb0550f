// Connections of tests, which wait for their other end.
#ifndef RING_KERAS_TESTS_SUPPORT_SOCKETS_H_
#define RING_KERAS_TESTS_SUPPORT_SOCKETS_H_

#include <poll.h>
#include <sys/socket.h>

#include <string>

#include "tf_ops/common/deadline.h"
#include "tf_ops/common/socket.h"
#include "tf_ops/common/status.h"

namespace ring_keras::testing {

// DeadlineExceeded if none comes.
inline StatusOr<FileDescriptor> Accept(const FileDescriptor& listener,
                                       Deadline deadline) {
  StatusOr<bool> ready = WaitUntilReady(listener.get(), POLLIN, deadline);
  RING_KERAS_RETURN_IF_ERROR(ready.status());
  FileDescriptor fd(
      accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!fd.valid()) {
    return Status(StatusCode::kDeadlineExceeded, "no connection came");
  }
  DisableNagle(fd.get());
  return fd;
}

// Of this host: nobody listens there any more.
inline int PortOfNobody() {
  auto listener = Listen("127.0.0.1", 0);
  return LocalPort(listener.value().get());
}

}  // namespace ring_keras::testing

#endif  // RING_KERAS_TESTS_SUPPORT_SOCKETS_H_
