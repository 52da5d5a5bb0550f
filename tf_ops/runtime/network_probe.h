// Tries which addresses of other hosts answer from this one.
#ifndef RING_KERAS_RUNTIME_NETWORK_PROBE_H_
#define RING_KERAS_RUNTIME_NETWORK_PROBE_H_

#include <string>
#include <vector>

#include "tf_ops/common/deadline.h"
#include "tf_ops/common/status.h"
#include "tf_ops/rendezvous/handshake_protocol.h"
#include "tf_ops/runtime/network_choice.h"

namespace ring_keras {

struct ProbeOptions {
  HandshakeParty self;
  std::string token;
  // An address that has not even been connected to by then does not count where
  // the host has answered at another. The kernel tries twice meanwhile.
  double settle_s = 3;
  // Where it has answered at none, all are tried again and again until then.
  double give_up_s = 6;
  // Who takes a connection and says nothing may be busy: it has until then.
  double busy_s = 60;
};

// Connects to all candidates of `targets`, indices into `hosts`, at the same
// time, and proves to them, and has them prove, that they are of this job: the
// first rank of each host listens there. What it found amiss, in order.
// Errors: Interrupted, DeadlineExceeded, Internal.
StatusOr<std::vector<Obstacle>> ProbeHosts(
    const ProbeOptions& options, const std::vector<NetworkHost>& hosts,
    const std::vector<int>& targets, Deadline deadline);

}  // namespace ring_keras

#endif  // RING_KERAS_RUNTIME_NETWORK_PROBE_H_
