// This rank's connections to the other ranks of the job: to all from the
// beginning, or, in a large job, to those of other hosts when they are needed.
#ifndef RING_KERAS_TRANSPORT_MESH_H_
#define RING_KERAS_TRANSPORT_MESH_H_

#include <atomic>
#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "tf_ops/common/spare_memory.h"
#include "tf_ops/transport/link_source.h"
#include "tf_ops/transport/pair.h"
#include "tf_ops/transport/shm/buffer_allocator.h"
#include "tf_ops/transport/shm/doorbell.h"
#include "tf_ops/transport/shm/segment.h"
#include "tf_ops/transport/shm/tensor_arena.h"
#include "tf_ops/transport/shm/window.h"
#include "tf_ops/transport/transport.h"

namespace ring_keras {

// Another rank, as the mesh sees it.
struct MeshPeer {
  std::unique_ptr<Pair> pair;
  // Set when the rank shares memory with this one.
  std::unique_ptr<Segment> segment;
  std::unique_ptr<RemoteDoorbell> doorbell;
  // The memory of its tensors. Null: it has none, or it cannot be mapped.
  std::unique_ptr<TensorArena> tensors;
};

class Mesh {
 public:
  // `segment` may be null when no peer shares memory with this rank,
  // `transport` when all do. `peers` is indexed by rank; the entry of this rank
  // itself is empty. `hosts` gives each rank a number that the ranks with which
  // it shares memory have too: the same numbers on every rank.
  Mesh(int rank, std::unique_ptr<Doorbell> doorbell,
       std::unique_ptr<Segment> segment, std::unique_ptr<Transport> transport,
       std::vector<MeshPeer> peers, std::vector<int> hosts);

  // From now on `links` makes the connections that pairs lack. Of ranks on
  // other hosts, those of a group with no more than `max_direct_peers` are to
  // have one each.
  void MakeWhenNeeded(std::unique_ptr<LinkSource> links, int max_direct_peers);
  // Unlimited where all have one.
  int max_direct_peers() const { return max_direct_peers_; }
  // Whether it began with a connection to every rank.
  bool connects_all() const { return links_ == nullptr; }
  // Sees to it that there is a connection to `peer`, soon. From any thread.
  void Open(int peer);
  // `peer` has ended.
  void Forget(int peer);
  // `peer` has died.
  void Lose(int peer);
  // Of those that are made by a network.
  int connected_count() const { return connected_count_; }

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(peers_.size()); }
  int host_of(int rank) const { return hosts_[rank]; }
  Pair& pair(int peer) { return *peers_[peer].pair; }

  // What reaches the ranks that share no memory with this one; empty: none
  // does.
  std::string transport_name() const {
    return transport_ == nullptr ? "" : transport_->name();
  }

  // See Transport. The same on all ranks, also on those that need none.
  size_t message_nbytes() const { return message_nbytes_; }
  void set_message_nbytes(size_t nbytes) { message_nbytes_ = nbytes; }

  bool SharesMemoryWith(int peer) const {
    return peers_[peer].segment != nullptr;
  }
  Segment& peer_segment(int peer) { return *peers_[peer].segment; }
  // Only where a peer shares memory with this rank.
  WindowAllocator& windows() { return *windows_; }
  BufferAllocator& buffers() { return *buffers_; }
  Segment& own_segment() { return *segment_; }
  bool has_segment() const { return segment_ != nullptr; }

  // Of the driver's collectives.
  SpareMemory& spare_memory() { return spare_memory_; }

  // The memory from which this rank's tensors come, which its peers may have
  // mapped.
  void set_own_tensors(TensorArena* tensors) { own_tensors_ = tensors; }
  // Of a rank that shares memory with this one, or of this one. Null: there is
  // none that this rank can read.
  TensorArena* tensors(int rank) const {
    return rank == rank_ ? own_tensors_ : peers_[rank].tensors.get();
  }

  // Moves what can be moved on every pair; whether anything was.
  bool Pump();

  // Looks whether the hosts of all peers still answer; to be called about every
  // second.
  void CheckPeers();

  // Whether something waits for a live peer to take it. From any thread.
  bool has_unsent() const {
    return unsent_.load(std::memory_order_relaxed) > 0;
  }

  // Whether all that was queued for live peers has reached their hosts.
  bool flushed() const;

  // Tells `peer`, which shares memory, that window counters changed.
  void Notify(int peer) { peers_[peer].doorbell->RingIfSleeping(); }

  // Whether what comes ends Sleep; if not, it is seen at the next look.
  bool is_woken() const {
    return transport_ == nullptr || transport_->descriptor() >= 0;
  }
  // Whether payloads are under way that only this rank's looks may move: its
  // network tells nobody that it could go on.
  bool moves_by_looks() const;
  // Waits until something may have come from a peer, Wake is called, or
  // `timeout_ms` passed. `has_news` is asked once more before sleeping.
  void Sleep(int timeout_ms, const std::function<bool()>& has_news);
  // Ends Sleep; from any thread.
  void Wake() { doorbell_->Ring(); }

 private:
  // Of the pieces that collectives have under way.
  static constexpr size_t kMaxSpareBytes = size_t{16} << 20;

  void TakeLinks();
  // Until one of the doorbell and the transport has something.
  void Wait(int timeout_ms);

  int rank_;
  std::unique_ptr<Doorbell> doorbell_;
  std::shared_ptr<Segment> segment_;
  std::unique_ptr<WindowAllocator> windows_;
  std::shared_ptr<BufferAllocator> buffers_;
  TensorArena* own_tensors_ = nullptr;
  SpareMemory spare_memory_{kMaxSpareBytes};
  size_t message_nbytes_ = Transport::kMessageBytes;
  std::unique_ptr<Transport> transport_;
  std::chrono::microseconds nap_{0};  // The last one; 0: something has come.
  std::atomic<int> unsent_{0};        // Streams that have something to take.
  std::vector<MeshPeer> peers_;
  std::vector<int> hosts_;
  std::vector<Pair*> connected_;  // Those of peers_ that have their streams.
  int connected_count_ = 0;
  int max_direct_peers_ = std::numeric_limits<int>::max();
  std::unique_ptr<LinkSource> links_;  // Null: no pair lacks any.
};

}  // namespace ring_keras

#endif  // RING_KERAS_TRANSPORT_MESH_H_
