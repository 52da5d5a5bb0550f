#include "tf_ops/rendezvous/selector.h"

#include <algorithm>
#include <cerrno>

namespace ring_keras::rendezvous {

StatusOr<Selector> Selector::Make() {
  FileDescriptor epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) {
    return Status(StatusCode::kInternal,
                  StrCat("cannot open an epoll: ", ErrnoMessage(errno)));
  }
  return Selector(std::move(epoll));
}

Status Selector::Watch(int fd, uint64_t id, uint32_t events) {
  epoll_event event = {};
  event.events = events;
  event.data.u64 = id;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return Status(StatusCode::kResourceExhausted,
                  StrCat("cannot watch a descriptor: ", ErrnoMessage(errno)));
  }
  ++count_;
  return Status::Ok();
}

void Selector::Change(int fd, uint64_t id, uint32_t events) const {
  epoll_event event = {};
  event.events = events;
  event.data.u64 = id;
  // Fails only for one that is not watched.
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void Selector::Forget(int fd) {
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr) == 0) --count_;
}

StatusOr<std::vector<Selector::Ready>> Selector::Wait(int timeout_ms) const {
  // Room for all: whoever judges by silence must have looked at every one.
  std::vector<epoll_event> events(std::max<size_t>(count_, 1));
  const int got = epoll_wait(epoll_.get(), events.data(),
                             static_cast<int>(events.size()), timeout_ms);
  if (got < 0 && errno != EINTR) {
    return Status(StatusCode::kInternal,
                  StrCat("epoll failed: ", ErrnoMessage(errno)));
  }
  std::vector<Ready> ready;
  for (int i = 0; i < got; ++i) {
    ready.push_back({events[i].data.u64, events[i].events});
  }
  return ready;
}

}  // namespace ring_keras::rendezvous
