// Wakes a thread of this process that polls.
//
// An eventfd, unlike the pipe of transport/shm/doorbell.h: no other process has
// to find it.
#ifndef RING_KERAS_RENDEZVOUS_WAKE_UP_H_
#define RING_KERAS_RENDEZVOUS_WAKE_UP_H_

#include <utility>

#include "tf_ops/common/socket.h"
#include "tf_ops/common/status.h"

namespace ring_keras::rendezvous {

class WakeUp {
 public:
  static StatusOr<WakeUp> Make();
  // To poll for input.
  int get() const { return fd_.get(); }
  void Notify() const;
  void Clear() const;

 private:
  explicit WakeUp(FileDescriptor fd) : fd_(std::move(fd)) {}
  FileDescriptor fd_;
};

}  // namespace ring_keras::rendezvous

#endif  // RING_KERAS_RENDEZVOUS_WAKE_UP_H_
