// How a rank says that it has given up a collective in which peers read its
// memory, which its caller is about to have back.
#ifndef RING_KERAS_COLLECTIVES_WITHDRAWAL_H_
#define RING_KERAS_COLLECTIVES_WITHDRAWAL_H_

#include <algorithm>
#include <atomic>

#include "tf_ops/collectives/collective.h"

namespace ring_keras {

// Before all that the caller writes.
inline void Withdraw(Window& window) {
  window.withdrawn.store(true, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
}

// Whether a peer has done so, before all of what this rank read was read.
inline bool AnyWithdrew(const Participants& participants) {
  std::atomic_thread_fence(std::memory_order_acquire);
  return std::any_of(
      participants.begin(), participants.end(), [](const Participant& peer) {
        return peer.window->withdrawn.load(std::memory_order_relaxed);
      });
}

}  // namespace ring_keras

#endif  // RING_KERAS_COLLECTIVES_WITHDRAWAL_H_
