#include "tf_ops/transport/mesh.h"

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <ctime>

namespace ring_keras {
namespace {

// Where nothing tells that something has come, a rank that waits looks again
// after so long, and twice as long each time until something has.
constexpr std::chrono::microseconds kShortestNap(50);
constexpr std::chrono::microseconds kLongestNap(1000);

}  // namespace

Mesh::Mesh(int rank, std::unique_ptr<Doorbell> doorbell,
           std::unique_ptr<Segment> segment,
           std::unique_ptr<Transport> transport, std::vector<MeshPeer> peers,
           std::vector<int> hosts)
    : rank_(rank),
      doorbell_(std::move(doorbell)),
      segment_(std::move(segment)),
      transport_(std::move(transport)),
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

void Mesh::Lose(int peer) {
  if (transport_ != nullptr) transport_->Lose(peer);
}

void Mesh::TakeLinks() {
  for (NewLink& link : links_->Take()) {
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
  if (transport_ != nullptr) transport_->Collect();
  bool moved = false;
  for (size_t i = 0; i < connected_.size(); ++i) moved |= connected_[i]->Pump();
  // What this rank has been told to pass on: it may have nothing more to do.
  if (links_ != nullptr && has_unsent()) {
    for (Pair* pair : connected_) pair->WriteQueued();
  }
  if (moved) nap_ = {};
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

bool Mesh::moves_by_looks() const {
  return !is_woken() &&
         std::any_of(connected_.begin(), connected_.end(),
                     [](const Pair* pair) { return pair->moves_directly(); });
}

void Mesh::Sleep(int timeout_ms, const std::function<bool()>& has_news) {
  std::atomic<uint32_t>* sleeping =
      segment_ != nullptr ? &segment_->header().sleeping : nullptr;
  if (sleeping != nullptr) {
    sleeping->store(1, std::memory_order_relaxed);
    // Pairs with the fence in RemoteDoorbell::RingIfSleeping.
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  if (!has_news()) Wait(timeout_ms);
  if (sleeping != nullptr) sleeping->store(0, std::memory_order_relaxed);
}

void Mesh::Wait(int timeout_ms) {
  pollfd waiting[] = {
      {doorbell_->descriptor(), POLLIN, 0},
      // Skipped when negative.
      {transport_ != nullptr ? transport_->descriptor() : -1, POLLIN, 0}};
  if (is_woken()) {
    poll(waiting, 2, timeout_ms);
  } else {
    nap_ = std::clamp(2 * nap_, kShortestNap, kLongestNap);
    const timespec nap = {0, std::chrono::nanoseconds(nap_).count()};
    ppoll(waiting, 1, &nap, nullptr);
  }
  if (waiting[0].revents != 0) doorbell_->Clear();
}

}  // namespace ring_keras
