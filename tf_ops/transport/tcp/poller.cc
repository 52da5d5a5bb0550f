#include "tf_ops/transport/tcp/poller.h"

#include <sys/epoll.h>

#include <cerrno>

namespace ring_keras {
namespace {

Status SystemError(const char* what) {
  return Status(StatusCode::kInternal, StrCat(what, ": ", ErrnoMessage(errno)));
}

}  // namespace

StatusOr<std::unique_ptr<Poller>> Poller::Create() {
  FileDescriptor epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return SystemError("cannot watch sockets");
  return std::unique_ptr<Poller>(new Poller(std::move(epoll)));
}

Status Poller::Watch(int socket, Readiness* readiness) {
  epoll_event event = {};
  event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  event.data.ptr = readiness;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, socket, &event) != 0) {
    return SystemError("cannot watch a socket");
  }
  return Status::Ok();
}

void Poller::Collect() {
  constexpr int kEvents = 64;
  epoll_event events[kEvents];
  int count;
  do {
    count = epoll_wait(epoll_.get(), events, kEvents, 0);
    for (int i = 0; i < count; ++i) {
      auto* readiness = static_cast<Readiness*>(events[i].data.ptr);
      const uint32_t what = events[i].events;
      if ((what & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) {
        readiness->hung_up = true;
      }
      if ((what & EPOLLIN) != 0 || readiness->hung_up) {
        readiness->readable = true;
      }
      if ((what & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0) {
        readiness->writable = true;
      }
    }
  } while (count == kEvents);
}

}  // namespace ring_keras
