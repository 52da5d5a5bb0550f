#include "tf_ops/transport/mesh.h"

#include <poll.h>

#include <atomic>

namespace ring_keras {

Mesh::Mesh(int rank, std::unique_ptr<Doorbell> doorbell,
           std::unique_ptr<Segment> segment, std::unique_ptr<Poller> poller,
           std::vector<MeshPeer> peers, std::vector<int> hosts)
    : rank_(rank),
      doorbell_(std::move(doorbell)),
      segment_(std::move(segment)),
      poller_(std::move(poller)),
      peers_(std::move(peers)),
      hosts_(std::move(hosts)) {
  if (segment_ != nullptr) {
    windows_ = std::make_unique<WindowAllocator>(segment_.get());
    buffers_ = std::make_shared<BufferAllocator>(segment_);
  }
  for (MeshPeer& peer : peers_) {
    if (peer.pair != nullptr) peer.pair->CountUnsentIn(&unsent_);
  }
}

bool Mesh::Pump() {
  if (poller_ != nullptr) poller_->Collect();
  bool moved = false;
  for (MeshPeer& peer : peers_) {
    if (peer.pair != nullptr) moved |= peer.pair->Pump();
  }
  return moved;
}

void Mesh::CheckPeers() {
  for (MeshPeer& peer : peers_) {
    if (peer.pair != nullptr) peer.pair->CheckPeer();
  }
}

bool Mesh::flushed() const {
  for (const MeshPeer& peer : peers_) {
    if (peer.pair != nullptr && !peer.pair->flushed()) return false;
  }
  return true;
}

void Mesh::Sleep(int timeout_ms, const std::function<bool()>& has_news) {
  std::atomic<uint32_t>* sleeping =
      segment_ != nullptr ? &segment_->header().sleeping : nullptr;
  if (sleeping != nullptr) {
    sleeping->store(1, std::memory_order_relaxed);
    // Pairs with the fence in RemoteDoorbell::RingIfSleeping.
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  if (!has_news()) {
    pollfd waiting[] = {
        {doorbell_->descriptor(), POLLIN, 0},
        // Skipped when negative.
        {poller_ != nullptr ? poller_->descriptor() : -1, POLLIN, 0}};
    poll(waiting, 2, timeout_ms);
    if (waiting[0].revents != 0) doorbell_->Clear();
  }
  if (sleeping != nullptr) sleeping->store(0, std::memory_order_relaxed);
}

}  // namespace ring_keras
