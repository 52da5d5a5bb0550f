// How a name has been used on a communicator, and what that has left.
#ifndef RING_KERAS_MATCHING_NAME_USE_H_
#define RING_KERAS_MATCHING_NAME_USE_H_

#include <cstdint>
#include <memory>

#include "tf_ops/collectives/channel.h"

namespace ring_keras {

// Counts begin when the name is first used, or anew when it was forgotten. So
// they say nothing about a peer's.
struct NameUse {
  // Guarded by the engine's mutex.
  uint64_t next_sequence = 0;
  uint64_t last_step = 0;  // In which it was used; 0: in none.
  bool used_lately = false;

  // The driver's. Uses whose turn is over: they have ended, or a device has
  // been given all of them.
  uint64_t ended = 0;
  // Uses that have been announced, or have ended without.
  uint64_t settled = 0;
  // Uses of which no operation is left.
  uint64_t gone = 0;
  // From the end of the second use on. Not from the first: names that are made
  // up for one use leave nothing behind.
  std::unique_ptr<Channel> channel;

  // Whether no use is under way. The caller holds the engine's mutex.
  bool IsIdle() const { return ended == next_sequence; }

  // The caller holds the engine's mutex.
  void EndChannelIfIdle() {
    if (IsIdle() && channel != nullptr) EndChannel();
  }

  // On every rank, which sees that this one cannot take part in the next use.
  void EndChannel() {
    channel->End();
    channel.reset();
  }
};

}  // namespace ring_keras

#endif  // RING_KERAS_MATCHING_NAME_USE_H_
