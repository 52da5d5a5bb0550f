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
    if (peer.pair == nullptr) continue;
    peer.pair->CountUnsentIn(&unsent_);
    if (!peer.pair->connected()) continue;
    connected_.push_back(peer.pair.get());
    connected_count_ += peer.segment == nullptr ? 1 : 0;
  }
}

void Mesh::MakeWhenNeeded(std::unique_ptr<LinkSource> links,
                          int max_direct_peers) {
  links_ = std::move(links);
  max_direct_peers_ = max_direct_peers;
}

void Mesh::Open(int peer) {
  if (links_ != nullptr && peers_[peer].segment == nullptr) links_->Open(peer);
}

void Mesh::Forget(int peer) {
  if (links_ != nullptr) links_->Forget(peer);
}

void Mesh::TakeLinks() {
  for (NewLink& link : links_->Take(*poller_)) {
    Pair& pair = *peers_[link.peer].pair;
    if (!link.failure.ok()) {
      pair.FailToConnect(link.failure, std::move(link.addresses));
      continue;
    }
    pair.Connect(std::move(link.streams));
    connected_.push_back(&pair);
    ++connected_count_;
  }
}

bool Mesh::Pump() {
  if (links_ != nullptr && links_->has_new()) TakeLinks();
  if (poller_ != nullptr) poller_->Collect();
  bool moved = false;
  for (size_t i = 0; i < connected_.size(); ++i) moved |= connected_[i]->Pump();
  // What this rank has been told to pass on: it may have nothing more to do.
  if (links_ != nullptr && has_unsent()) {
    for (Pair* pair : connected_) pair->WriteQueued();
  }
  return moved;
}

void Mesh::CheckPeers() {
  for (Pair* pair : connected_) pair->CheckPeer();
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
