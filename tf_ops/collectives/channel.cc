#include "tf_ops/collectives/channel.h"

#include <algorithm>
#include <utility>

namespace ring_keras {

Channel::Channel(Communicator& communicator, Participants participants,
                 size_t slot_nbytes, uint64_t round)
    : communicator_(communicator),
      participants_(std::move(participants)),
      slot_nbytes_(slot_nbytes),
      round_(round) {
  communicator.mesh().windows().kept().Add(
      this, sizeof(Window) + kWindowSlots * slot_nbytes);
}

void Channel::End() {
  if (ended()) return;
  Post(kCannot, {});
  Release();
}

void Channel::Release() {
  if (ended()) return;
  state_ = State::kEnded;
  WindowAllocator& windows = communicator_.mesh().windows();
  windows.kept().Remove(this);
  for (int rank = 0; rank < communicator_.size(); ++rank) {
    if (rank == communicator_.rank()) continue;
    window(rank).readers_done.fetch_add(1, std::memory_order_release);
  }
  windows.Release(&window(communicator_.rank()), communicator_.size() - 1);
}

bool Channel::PeerHasEnded() const {
  for (int rank = 0; rank < communicator_.size(); ++rank) {
    const WindowPost& next = window(rank).posts[(use_ + 1) % 2];
    if (next.use.load(std::memory_order_acquire) == use_ + 1 &&
        next.signature == kCannot) {
      return true;
    }
  }
  return false;
}

WindowUse Channel::NextUse() {
  WindowUse next;
  next.window = &window(communicator_.rank());
  next.slot_nbytes = slot_nbytes_;
  next.first_round = round_;
  if (unpacked_ + kWindowSlots <= round_) {
    unpacked_ = round_;
    for (const Participant& participant : participants_) {
      unpacked_ = std::min(unpacked_, participant.window->unpacked.load(
                                          std::memory_order_acquire));
    }
  }
  next.first_slot_is_free = round_ < unpacked_ + kWindowSlots;
  return next;
}

void Channel::Post(uint64_t signature, const Participant& own) {
  ++use_;
  last_missing_ = -1;
  state_ = State::kInUse;
  communicator_.mesh().windows().kept().Touch(this);
  WindowPost& post = window(communicator_.rank()).posts[use_ % 2];
  post.signature = signature;
  post.weight = own.weight;
  post.input_offset = own.input_offset;
  post.output_offset = own.output_offset;
  post.use.store(use_, std::memory_order_release);
  communicator_.NotifyAll();
}

bool Channel::HasPosted(int rank) const {
  return post(rank).use.load(std::memory_order_acquire) == use_;
}

// Looks first at the one that was missing last, so that this stays the one that
// comes last.
bool Channel::AllPosted() const {
  if (last_missing_ >= 0 && !HasPosted(last_missing_)) return false;
  for (int rank = 0; rank < communicator_.size(); ++rank) {
    if (HasPosted(rank)) continue;
    last_missing_ = rank;
    return false;
  }
  return true;
}

bool Channel::Agreed() const {
  const uint64_t own = post(communicator_.rank()).signature;
  if (own == kCannot) return false;
  for (int rank = 0; rank < communicator_.size(); ++rank) {
    if (post(rank).signature != own) return false;
  }
  return true;
}

bool Channel::IsAhead(int rank) const {
  if (ended()) return false;
  return window(rank).posts[(use_ + 1) % 2].use.load(
             std::memory_order_acquire) > use_;
}

const Participants& Channel::participants() {
  for (int rank = 0; rank < communicator_.size(); ++rank) {
    Participant& participant = participants_[rank];
    participant.weight = post(rank).weight;
    participant.input_offset = post(rank).input_offset;
    participant.output_offset = post(rank).output_offset;
  }
  return participants_;
}

}  // namespace ring_keras
