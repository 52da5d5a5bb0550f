#include "tf_ops/runtime/matcher.h"

#include <algorithm>
#include <utility>

namespace ring_keras {

Matcher::Uses& Matcher::UsesOf(uint64_t key, const UseId& use) {
  const auto [found, is_new] = uses_.try_emplace(key);
  Uses& uses = found->second;
  if (is_new) {
    uses.peers.resize(job_size_);
    uses.communicator_id = use.communicator_id;
    uses.step = use.step;
  }
  return uses;
}

void Matcher::EraseIfEmpty(uint64_t key) {
  const auto found = uses_.find(key);
  if (found != uses_.end() && found->second.open == 0) uses_.erase(found);
}

void Matcher::Add(uint64_t key, Operation& operation) {
  const Communicator& communicator = operation.communicator();
  if (communicator.size() == 1) return;
  Uses& uses = UsesOf(key, operation.use());
  for (int place = 0; place < communicator.size(); ++place) {
    if (place == communicator.rank()) continue;
    const int rank = communicator.ranks()[place];
    Peer& peer = uses.peers[rank];
    if (peer.kept.empty()) {
      peer.waiting.push_back(&operation);
      ++uses.open;
    } else {
      operation.OnAnnounced(rank, std::move(peer.kept.front()));
      peer.kept.pop_front();
      --uses.open;
    }
  }
  EraseIfEmpty(key);
}

void Matcher::Remove(uint64_t key, Operation& operation) {
  const auto found = uses_.find(key);
  if (found == uses_.end()) return;
  for (Peer& peer : found->second.peers) {
    std::replace(peer.waiting.begin(), peer.waiting.end(), &operation,
                 static_cast<Operation*>(nullptr));
  }
}

Matcher::Found Matcher::Take(uint64_t key, int rank,
                             Announcement& announcement) {
  const auto found = uses_.find(key);
  if (found == uses_.end()) return Found::kNone;
  Uses& uses = found->second;
  Peer& peer = uses.peers[rank];
  if (peer.waiting.empty()) return Found::kNone;
  Operation* operation = peer.waiting.front();
  peer.waiting.pop_front();
  --uses.open;
  EraseIfEmpty(key);
  if (operation == nullptr) return Found::kEnded;
  operation->OnAnnounced(rank, std::move(announcement));
  return Found::kOperation;
}

void Matcher::Keep(uint64_t key, int rank, Announcement&& announcement) {
  Uses& uses = UsesOf(key, announcement.use);
  uses.peers[rank].kept.push_back(std::move(announcement));
  ++uses.open;
}

bool Matcher::HasKept(uint64_t key) const {
  const auto found = uses_.find(key);
  return found != uses_.end() &&
         std::ranges::any_of(found->second.peers, [](const Peer& peer) {
           return !peer.kept.empty();
         });
}

void Matcher::ForgetCommunicator(int communicator_id) {
  for (auto entry = uses_.begin(); entry != uses_.end();) {
    Uses& uses = entry->second;
    if (uses.communicator_id == communicator_id) {
      for (Peer& peer : uses.peers) {
        uses.open -= peer.kept.size();
        peer.kept.clear();
      }
    }
    entry = uses.open == 0 ? uses_.erase(entry) : std::next(entry);
  }
}

}  // namespace ring_keras
