// By which of its addresses each host is reached, as every rank works it out
// from what all hosts have tried.
//
// A host here is what has network interfaces of its own: one network namespace.
#ifndef RING_KERAS_RUNTIME_NETWORK_CHOICE_H_
#define RING_KERAS_RUNTIME_NETWORK_CHOICE_H_

#include <string>
#include <vector>

#include "tf_ops/common/status.h"
#include "tf_ops/runtime/peer_card.h"

namespace ring_keras {

// An address at which a host can be tried.
struct Candidate {
  std::string interface;
  std::string address;  // Numeric.
  int port = 0;
  int speed_mbps = 0;  // 0: unknown.
  // The host's address on the way to the store. As all hosts reach that, these
  // are likely to be of one network.
  bool towards_store = false;
};

// What one host found amiss when it tried another's candidate: it did not reach
// it, or its own interface towards it is slower. Nothing of most.
struct Obstacle {
  int host = 0;  // Which was tried.
  size_t candidate = 0;
  bool reached = false;
  int speed_mbps = 0;   // Of its own interface; 0: unknown.
  std::string failure;  // Why it was not reached.
};

struct NetworkHost {
  std::string name;        // For messages.
  std::vector<int> ranks;  // Ascending.
  // Takes all interfaces at once, rather than the fastest.
  bool takes_all = false;
  std::vector<Candidate> candidates;
  std::vector<Obstacle> obstacles;  // That it met.
};

// The hosts, by their first ranks, without candidates.
std::vector<NetworkHost> NetworkHostsOf(const std::vector<PeerCard>& cards);

// Which hosts `host` tries: those to which its ranks connect, which is all up
// to 64 hosts; beyond, as many as the number of hosts has bits.
std::vector<int> HostsToTry(const std::vector<NetworkHost>& hosts, int host);

// Indices into each host's candidates. Of those that all who tried them have
// reached, it is the fastest; of equally fast ones, the one that reaches the
// store, then the first. With `takes_all` the best of each interface, the
// fastest first.
//
// Errors: Internal: a host has none that all have reached. It is the same on
// every rank, and names the hosts and the addresses.
StatusOr<std::vector<std::vector<size_t>>> ChooseCandidates(
    const std::vector<NetworkHost>& hosts);

// A candidate of `host` that would have been chosen, if all had reached it, and
// who has not, in words; empty: there is none.
std::string MissedCandidate(const std::vector<NetworkHost>& hosts, int host,
                            const std::vector<size_t>& chosen);

// What a host gives to the others through the store.
std::string EncodeCandidates(const NetworkHost& host);
Status DecodeCandidates(const std::string& text, NetworkHost* host);
std::string EncodeObstacles(const std::vector<Obstacle>& obstacles);
// `hosts` have their candidates.
Status DecodeObstacles(const std::string& text,
                       const std::vector<NetworkHost>& hosts,
                       NetworkHost* host);

}  // namespace ring_keras

#endif  // RING_KERAS_RUNTIME_NETWORK_CHOICE_H_
