#include "tf_ops/runtime/abort_message.h"

#include <string>
#include <utility>

#include "tf_ops/transport/status_wire.h"

namespace ring_keras {

void TellAbort(Member& member, const Status& why) {
  if (std::exchange(member.peers_know_broken, true)) return;
  const std::string bytes = Encode(why);
  Communicator& communicator = *member.communicator;
  communicator.Tell(FrameType::kAbort, communicator.id(), bytes);
  // The way to others may lead by a rank that has left.
  for (int rank = 0; rank < communicator.size(); ++rank) {
    if (rank == communicator.rank() || communicator.HearsFrom(rank)) continue;
    Pair& pair = communicator.pair(rank);
    if (!pair.connected()) continue;
    pair.SendControl(FrameType::kAbort, communicator.id(), bytes);
  }
}

}  // namespace ring_keras
