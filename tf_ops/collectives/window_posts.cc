#include "tf_ops/collectives/window_posts.h"

namespace ring_keras {

void WindowPosts::Enter(uint64_t signature, const Participant& own) {
  ++use_;
  last_missing_ = -1;
  WindowPost& post = window(communicator_.rank()).posts[use_ % 2];
  post.signature = signature;
  post.weight = own.weight;
  post.input_offset = own.input_offset;
  post.output_offset = own.output_offset;
  post.use.store(use_, std::memory_order_release);
  communicator_.NotifyAll();
}

bool WindowPosts::HasPosted(int rank) const {
  return post(rank).use.load(std::memory_order_acquire) == use_;
}

// Looks first at the one that was missing last, so that this stays the one that
// comes last.
bool WindowPosts::All() const {
  if (last_missing_ >= 0 && !HasPosted(last_missing_)) return false;
  for (int rank = 0; rank < communicator_.size(); ++rank) {
    if (HasPosted(rank)) continue;
    last_missing_ = rank;
    return false;
  }
  return true;
}

bool WindowPosts::Agreed() const {
  const uint64_t own = post(communicator_.rank()).signature;
  if (own == kCannot) return false;
  for (int rank = 0; rank < communicator_.size(); ++rank) {
    if (post(rank).signature != own) return false;
  }
  return true;
}

void WindowPosts::Describe(Participants* participants) const {
  for (int rank = 0; rank < communicator_.size(); ++rank) {
    Participant& participant = (*participants)[rank];
    participant.weight = post(rank).weight;
    participant.input_offset = post(rank).input_offset;
    participant.output_offset = post(rank).output_offset;
  }
}

bool WindowPosts::IsAhead(int rank) const {
  return window(rank).posts[(use_ + 1) % 2].use.load(
             std::memory_order_acquire) > use_;
}

bool WindowPosts::PeerCannot() const {
  for (int rank = 0; rank < communicator_.size(); ++rank) {
    const WindowPost& next = window(rank).posts[(use_ + 1) % 2];
    if (next.use.load(std::memory_order_acquire) == use_ + 1 &&
        next.signature == kCannot) {
      return true;
    }
  }
  return false;
}

}  // namespace ring_keras
