// Ranks of a communicator in one thread: a test runs each by hand, in any
// order, and may leave one where it is.
#ifndef RING_KERAS_TESTS_COLLECTIVES_MEMBERS_H_
#define RING_KERAS_TESTS_COLLECTIVES_MEMBERS_H_

#include <unistd.h>

#include <memory>
#include <numeric>
#include <vector>

#include "tests/cpp/support/polled_transport.h"
#include "tests/cpp/support/test.h"
#include "tests/cpp/transport/transport_test_support.h"
#include "tf_ops/collectives/communicator.h"

namespace ring_keras {

// One rank, with its connections to all others.
struct Member {
  Scheduler scheduler;
  std::unique_ptr<TensorArena> tensors;  // If there are any.
  std::unique_ptr<Mesh> mesh;
  std::unique_ptr<Communicator> communicator;
};

inline void Complete(Member& member, int rank, int size,
                     std::unique_ptr<Doorbell> doorbell,
                     std::unique_ptr<Segment> segment,
                     std::unique_ptr<Poller> poller,
                     std::vector<MeshPeer> peers, std::vector<int> hosts) {
  std::vector<int> everyone(size);
  std::iota(everyone.begin(), everyone.end(), 0);
  member.mesh =
      std::make_unique<Mesh>(rank, std::move(doorbell), std::move(segment),
                             PolledTransport::Over(std::move(poller)),
                             std::move(peers), std::move(hosts));
  member.communicator = std::make_unique<Communicator>(
      0, everyone, Tuning(), *member.mesh, member.scheduler);
}

// Joined by loopback sockets.
inline std::vector<Member> Connect(int size) {
  std::vector<std::unique_ptr<Poller>> pollers;
  std::vector<std::vector<MeshPeer>> peers(size);
  for (int rank = 0; rank < size; ++rank) {
    pollers.push_back(std::move(Poller::Create().value()));
    peers[rank].resize(size);
  }
  const auto pair_over = [&](FileDescriptor socket, int rank) {
    Streams streams;
    streams.push_back(std::move(
        TcpStream::Create(std::move(socket), *pollers[rank]).value()));
    return std::make_unique<Pair>(std::move(streams));
  };
  for (int a = 0; a < size; ++a) {
    for (int b = a + 1; b < size; ++b) {
      auto [at_a, at_b] = ConnectedSockets();
      peers[a][b].pair = pair_over(std::move(at_a), a);
      peers[b][a].pair = pair_over(std::move(at_b), b);
    }
  }
  std::vector<int> hosts(size);
  std::iota(hosts.begin(), hosts.end(), 0);
  std::vector<Member> members(size);
  for (int rank = 0; rank < size; ++rank) {
    Complete(members[rank], rank, size, std::move(Doorbell::Create().value()),
             nullptr, std::move(pollers[rank]), std::move(peers[rank]), hosts);
  }
  return members;
}

// Each sees the others' memory by a mapping of its own. No messages. Ranks have
// arenas for tensors if `with_arenas`.
inline std::vector<Member> ConnectByMemory(int size, bool with_arenas = false) {
  std::vector<std::unique_ptr<Doorbell>> doorbells;
  std::vector<std::unique_ptr<Segment>> segments;
  for (int rank = 0; rank < size; ++rank) {
    doorbells.push_back(std::move(Doorbell::Create().value()));
    segments.push_back(std::move(Segment::Create(size).value()));
  }
  std::vector<std::unique_ptr<TensorArena>> arenas(size);
  if (with_arenas) {
    for (auto& arena : arenas) arena = std::move(TensorArena::Create().value());
  }
  std::vector<std::vector<MeshPeer>> peers(size);
  for (int rank = 0; rank < size; ++rank) {
    peers[rank].resize(size);
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      MeshPeer& seen = peers[rank][peer];
      seen.segment = std::move(Segment::Attach(size, getpid(),
                                               segments[peer]->descriptor(),
                                               segments[peer]->header().nonce)
                                   .value());
      seen.doorbell = std::move(
          RemoteDoorbell::Open(getpid(), doorbells[peer]->write_descriptor(),
                               &seen.segment->header().sleeping)
              .value());
      if (!with_arenas) continue;
      seen.tensors =
          std::move(TensorArena::Attach(getpid(), arenas[peer]->descriptor(),
                                        arenas[peer]->nonce())
                        .value());
    }
  }
  std::vector<Member> members(size);
  for (int rank = 0; rank < size; ++rank) {
    members[rank].tensors = std::move(arenas[rank]);
    Complete(members[rank], rank, size, std::move(doorbells[rank]),
             std::move(segments[rank]), nullptr, std::move(peers[rank]),
             std::vector<int>(size, 0));
    members[rank].mesh->set_own_tensors(members[rank].tensors.get());
  }
  return members;
}

}  // namespace ring_keras

#endif  // RING_KERAS_TESTS_COLLECTIVES_MEMBERS_H_
