#include "tf_ops/rendezvous/wake_up.h"

#include <sys/eventfd.h>

#include <cerrno>

namespace ring_keras::rendezvous {

StatusOr<WakeUp> WakeUp::Make() {
  FileDescriptor fd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!fd.valid()) {
    return Status(StatusCode::kInternal,
                  StrCat("cannot open an eventfd: ", ErrnoMessage(errno)));
  }
  return WakeUp(std::move(fd));
}

void WakeUp::Notify() const {
  // Fails only when the counter is full, and then it is awake.
  [[maybe_unused]] const int result = eventfd_write(fd_.get(), 1);
}

void WakeUp::Clear() const {
  eventfd_t count = 0;
  // Fails only when nobody notified.
  [[maybe_unused]] const int result = eventfd_read(fd_.get(), &count);
}

}  // namespace ring_keras::rendezvous
