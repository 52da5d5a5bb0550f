// Wakes a rank that sleeps: a pipe, so that one poll() watches it and sockets.
#ifndef RING_KERAS_TRANSPORT_SHM_DOORBELL_H_
#define RING_KERAS_TRANSPORT_SHM_DOORBELL_H_

#include <atomic>
#include <memory>

#include "tf_ops/common/status.h"

namespace ring_keras {

class Doorbell {
 public:
  static StatusOr<std::unique_ptr<Doorbell>> Create();
  ~Doorbell();
  Doorbell(const Doorbell&) = delete;
  Doorbell& operator=(const Doorbell&) = delete;

  // To poll for input.
  int descriptor() const { return read_end_; }
  // For RemoteDoorbell of the same host.
  int write_descriptor() const { return write_end_; }

  void Ring();
  // Forgets all rings so far.
  void Clear();

 private:
  Doorbell(int read_end, int write_end)
      : read_end_(read_end), write_end_(write_end) {}
  int read_end_;
  int write_end_;
};

// The doorbell of another process of this host, with the flag that says
// whether ringing is needed.
class RemoteDoorbell {
 public:
  // `sleeping` lies in that process's segment and outlives this.
  static StatusOr<std::unique_ptr<RemoteDoorbell>> Open(
      int pid, int write_descriptor, std::atomic<uint32_t>* sleeping);
  ~RemoteDoorbell();
  RemoteDoorbell(const RemoteDoorbell&) = delete;
  RemoteDoorbell& operator=(const RemoteDoorbell&) = delete;

  // Call after publishing something in shared memory that the owner may be
  // waiting for.
  void RingIfSleeping() {
    // Orders the caller's publication before the look at the flag; the owner
    // sets the flag, then looks for publications.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (sleeping_->load(std::memory_order_relaxed) != 0) Ring();
  }

 private:
  RemoteDoorbell(int write_end, std::atomic<uint32_t>* sleeping)
      : write_end_(write_end), sleeping_(sleeping) {}
  void Ring();
  int write_end_;
  std::atomic<uint32_t>* sleeping_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_TRANSPORT_SHM_DOORBELL_H_
