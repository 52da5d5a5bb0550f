// How often a name has been used on a communicator, and what that has left.
#ifndef RING_KERAS_RUNTIME_NAME_USE_H_
#define RING_KERAS_RUNTIME_NAME_USE_H_

#include <cstdint>
#include <memory>

#include "tf_ops/collectives/channel.h"

namespace ring_keras {

struct NameUse {
  // Guarded by the engine's mutex.
  uint32_t next_sequence = 0;

  // The driver's. Uses whose turn is over: they have ended, or a device has
  // been given all of them.
  uint32_t ended = 0;
  // From the end of the second use on, if the ranks share memory. Not from the
  // first: names that are made up for one use leave nothing behind.
  std::unique_ptr<Channel> channel;

  // Whether no use is under way. The caller holds the engine's mutex.
  bool IsIdle() const { return ended == next_sequence; }

  // On every rank, which sees that this one cannot take part in the next use.
  void EndChannel() {
    channel->End();
    channel.reset();
  }
};

}  // namespace ring_keras

#endif  // RING_KERAS_RUNTIME_NAME_USE_H_
