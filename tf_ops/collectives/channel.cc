#include "tf_ops/collectives/channel.h"

#include <algorithm>
#include <utility>

#include "tf_ops/collectives/message_posts.h"
#include "tf_ops/collectives/window_posts.h"

namespace ring_keras {
namespace {

bool HaveWindows(const Participants& participants) {
  return std::all_of(
      participants.begin(), participants.end(),
      [](const Participant& each) { return each.window != nullptr; });
}

std::unique_ptr<Posts> MakePosts(bool in_windows, Communicator& communicator,
                                 const Participants& participants) {
  if (in_windows) {
    return std::make_unique<WindowPosts>(communicator, participants);
  }
  return std::make_unique<MessagePosts>(communicator, participants.key);
}

}  // namespace

Channel::Channel(Communicator& communicator, Participants participants,
                 size_t slot_nbytes, uint64_t round)
    : communicator_(communicator),
      participants_(std::move(participants)),
      has_windows_(HaveWindows(participants_)),
      posts_(MakePosts(has_windows_, communicator_, participants_)),
      slot_nbytes_(slot_nbytes),
      round_(round) {
  if (has_windows_) {
    communicator.mesh().windows().kept().Add(
        this, sizeof(Window) + WindowBytes(slot_nbytes));
  } else {
    Forget();
  }
}

void Channel::Forget() {
  posts_->Leave();
  for (Participant& participant : participants_) {
    participant.payload = {};
    participant.window = nullptr;
  }
}

void Channel::End() {
  if (ended()) return;
  Post(Posts::kCannot, {});
  Release();
}

void Channel::Release() {
  if (ended()) return;
  state_ = State::kEnded;
  if (!has_windows_) return;
  WindowAllocator& windows = communicator_.mesh().windows();
  windows.kept().Remove(this);
  for (int rank = 0; rank < communicator_.size(); ++rank) {
    if (rank == communicator_.rank()) continue;
    participants_[rank].window->readers_done.fetch_add(
        1, std::memory_order_release);
  }
  windows.Release(own_window(), communicator_.size() - 1);
}

WindowUse Channel::NextUse() {
  WindowUse next;
  if (!has_windows_) return next;
  next.window = own_window();
  next.slot_nbytes = slot_nbytes_;
  next.first_round = round_;
  const size_t slots = WindowSlots(slot_nbytes_);
  if (unpacked_ + slots <= round_) {
    unpacked_ = round_;
    for (const Participant& participant : participants_) {
      unpacked_ = std::min(unpacked_, participant.window->unpacked.load(
                                          std::memory_order_acquire));
    }
  }
  next.first_slot_is_free = round_ < unpacked_ + slots;
  return next;
}

void Channel::Post(uint64_t signature, const Participant& own) {
  state_ = State::kInUse;
  if (has_windows_) communicator_.mesh().windows().kept().Touch(this);
  posts_->Enter(signature, own);
}

Participants& Channel::participants() {
  posts_->Describe(&participants_);
  return participants_;
}

}  // namespace ring_keras
