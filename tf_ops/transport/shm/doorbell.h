// Wakes a rank that sleeps: a pipe, so that one poll() watches it and sockets.
#ifndef RING_KERAS_TRANSPORT_SHM_DOORBELL_H_
#define RING_KERAS_TRANSPORT_SHM_DOORBELL_H_

#include <atomic>
#include <memory>
#include <utility>

#include "tf_ops/common/socket.h"
#include "tf_ops/common/status.h"

namespace ring_keras {

class Doorbell {
 public:
  static StatusOr<std::unique_ptr<Doorbell>> Create();

  // To poll for input.
  int descriptor() const { return read_end_.get(); }
  // For RemoteDoorbell of the same host.
  int write_descriptor() const { return write_end_.get(); }

  void Ring();
  // Forgets all rings so far.
  void Clear();

 private:
  Doorbell(FileDescriptor read_end, FileDescriptor write_end)
      : read_end_(std::move(read_end)), write_end_(std::move(write_end)) {}
  FileDescriptor read_end_;
  FileDescriptor write_end_;
};

// The doorbell of another process of this host, with the flag that says
// whether ringing is needed.
class RemoteDoorbell {
 public:
  // `sleeping` lies in that process's segment and outlives this.
  static StatusOr<std::unique_ptr<RemoteDoorbell>> Open(
      int pid, int write_descriptor, std::atomic<uint32_t>* sleeping);
  // Call after publishing something in shared memory that the owner may be
  // waiting for.
  void RingIfSleeping() {
    // Orders the caller's publication before the look at the flag; the owner
    // sets the flag, then looks for publications.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (sleeping_->load(std::memory_order_relaxed) != 0) Ring();
  }

 private:
  RemoteDoorbell(FileDescriptor both_ends, std::atomic<uint32_t>* sleeping)
      : both_ends_(std::move(both_ends)), sleeping_(sleeping) {}
  void Ring();
  // To read from as well: a pipe that nobody can read any more, because its
  // owner has died, would end this process with SIGPIPE.
  FileDescriptor both_ends_;
  std::atomic<uint32_t>* sleeping_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_TRANSPORT_SHM_DOORBELL_H_
