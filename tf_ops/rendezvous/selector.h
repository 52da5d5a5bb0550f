// Which of many descriptors are ready. What that costs depends on how many are,
// not on how many there are.
#ifndef RING_KERAS_RENDEZVOUS_SELECTOR_H_
#define RING_KERAS_RENDEZVOUS_SELECTOR_H_

#include <sys/epoll.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "tf_ops/common/socket.h"
#include "tf_ops/common/status.h"

namespace ring_keras::rendezvous {

// Not thread-safe. Events are those of epoll, level-triggered.
class Selector {
 public:
  struct Ready {
    uint64_t id = 0;
    uint32_t events = 0;
  };

  static StatusOr<Selector> Make();

  // Readable while one of the others is ready, so that selectors can be nested.
  int descriptor() const { return epoll_.get(); }

  // Reports `fd` as `id` from now on. ResourceExhausted: the kernel watches no
  // more.
  Status Watch(int fd, uint64_t id, uint32_t events);
  void Change(int fd, uint64_t id, uint32_t events) const;
  // Before it is closed: a forked child may hold it open a little longer.
  void Forget(int fd);

  // All that are ready, or become so within `timeout_ms`; -1: no limit. None
  // after a signal.
  StatusOr<std::vector<Ready>> Wait(int timeout_ms) const;

 private:
  explicit Selector(FileDescriptor epoll) : epoll_(std::move(epoll)) {}
  FileDescriptor epoll_;
  size_t count_ = 0;
};

}  // namespace ring_keras::rendezvous

#endif  // RING_KERAS_RENDEZVOUS_SELECTOR_H_
