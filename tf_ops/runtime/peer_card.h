// What each rank tells all others through the store when it joins.
#ifndef RING_KERAS_RUNTIME_PEER_CARD_H_
#define RING_KERAS_RUNTIME_PEER_CARD_H_

#include <string>
#include <vector>

#include "tf_ops/collectives/tuning.h"
#include "tf_ops/common/status.h"
#include "tf_ops/transport/shm/segment.h"

namespace ring_keras {

struct PeerCard {
  std::string host_name;      // For messages.
  std::string boot_id;        // Of the machine and its boot; empty: unknown.
  std::string host_id;        // Tells hosts of one machine apart.
  std::string pid_namespace;  // Process numbers mean the same within one.
  // Ranks that see the same interfaces; empty: unknown.
  std::string network_namespace;
  int pid = 0;
  // Descriptors of the process, -1 if it offers no shared memory.
  int segment_descriptor = -1;
  int doorbell_descriptor = -1;
  SegmentNonce nonce{};
  // The memory of its tensors; -1 if it offers none.
  int tensors_descriptor = -1;
  SegmentNonce tensors_nonce{};
  // These must be the same on every rank.
  std::string transport;  // Between ranks that share no memory, by its name.
  Tuning tuning;
  bool autotune = false;

  // Whether the ranks count as being on one host: a machine may hold several,
  // as containers do.
  bool SameHost(const PeerCard& other) const {
    return boot_id == other.boot_id && host_id == other.host_id;
  }
  // Whether one may try to map the other's memory.
  bool MayShareMemory(const PeerCard& other) const {
    return SameHost(other) && !boot_id.empty() &&
           pid_namespace == other.pid_namespace && segment_descriptor >= 0 &&
           other.segment_descriptor >= 0;
  }
};

// The card of this process, without shared memory. `host_name` empty: the
// kernel's own, and then those who see the same one are on the same host,
// however many others bear that name.
PeerCard MakePeerCard(const std::string& host_name);

// RankMismatch if a setting that must be the same on every rank is not: says
// which, on which rank, both values.
Status CheckSameSettings(const std::vector<PeerCard>& cards);

std::string Encode(const PeerCard& card);
StatusOr<PeerCard> DecodePeerCard(const std::string& text);

}  // namespace ring_keras

#endif  // RING_KERAS_RUNTIME_PEER_CARD_H_
