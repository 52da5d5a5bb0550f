#include "tf_ops/collectives/shared_collective.h"

#include <limits>

namespace ring_keras {
namespace {

// A rank that packs no more is ahead of everybody.
constexpr uint64_t kAllPacked = std::numeric_limits<int64_t>::max();

}  // namespace

std::optional<size_t> SharedCollective::slot_nbytes() const {
  return SlotBytes(max_pack_nbytes(), communicator_.size());
}

void SharedCollective::Prepare(const WindowUse& window) {
  own_ = window.window;
  first_round_ = window.first_round;
  slot_nbytes_ = window.slot_nbytes;
  if (can_repeat()) slot_stride_ = slot_nbytes_;
  slots_ = WindowSlots(slot_stride_);
  if (pack_rounds() == 0) {
    SayPacked();
  } else if (window.first_slot_is_free) {
    PackNext();
  }
}

// Whether every rank has done `count` rounds of a stage. Rounds before this use
// count as well: `count` may be less than 0.
bool SharedCollective::AllDid(Counter stage, int64_t count) const {
  for (const Participant& participant : *participants_) {
    const uint64_t done =
        (participant.window->*stage).load(std::memory_order_acquire);
    if (static_cast<int64_t>(done) <
        static_cast<int64_t>(first_round_) + count) {
      return false;
    }
  }
  return true;
}

bool SharedCollective::CanPack() const {
  // The round that was in the slot before.
  const int64_t previous =
      static_cast<int64_t>(packed_) - static_cast<int64_t>(slots_);
  return packed_ < pack_rounds() && AllDid(&Window::unpacked, previous + 1);
}

bool SharedCollective::CanReduce() const {
  return reduced_ < rounds_ && AllDid(&Window::packed, reduced_ + 1);
}

bool SharedCollective::CanUnpack() const {
  return unpacked_ < rounds_ &&
         AllDid(has_reduce() ? &Window::reduced : &Window::packed,
                unpacked_ + 1);
}

void SharedCollective::PackNext() {
  {
    ShowingCopy copy(communicator_.packing(), slot_nbytes_);
    Pack(packed_, SlotOf(own_, packed_), copy);
  }
  ++packed_;
  SayPacked();
}

void SharedCollective::SayPacked() {
  // Where a rank cannot know how many rounds the others pack, the window is for
  // this use alone.
  const bool ahead = !can_repeat() && packed_ == pack_rounds();
  own_->packed.store(ahead ? kAllPacked : first_round_ + packed_,
                     std::memory_order_release);
}

void SharedCollective::PackAnew() {
  void_rounds_ = slots_;
  first_round_ += void_rounds_;
  packed_ = 0;
  own_->reduced.store(first_round_, std::memory_order_release);
  own_->unpacked.store(first_round_, std::memory_order_release);
  communicator_.NotifyAll();
}

void SharedCollective::Renew() {
  own_ = nullptr;
  participants_ = nullptr;
  void_rounds_ = packed_ = reduced_ = unpacked_ = rounds_ = 0;
}

// One round, which all have packed before they posted. Begin() may be called
// once only, so nothing may stand against the rest by then.
bool SharedCollective::RunAtOnce(const Participants& participants) {
  participants_ = &participants;
  if (!WeighTheSame(participants) || packed_ != 1 ||
      !AllDid(&Window::packed, 1)) {
    return false;
  }
  rounds_ = Begin(participants).value().count;
  Unpack(0);
  unpacked_ = 1;
  own_->unpacked.store(first_round_ + 1, std::memory_order_release);
  return true;
}

Task SharedCollective::Run(const Participants& participants) {
  participants_ = &participants;
  StatusOr<Rounds> begun = Begin(participants);
  if (!begun.ok()) {
    // The peers go on without us; let them not wait for this rank's memory.
    communicator_.Break(begun.status());
    co_return begun.status();
  }
  if (begun.value().pack_anew) PackAnew();
  rounds_ = begun.value().count;
  if (!has_reduce()) reduced_ = rounds_;
  if (can_repeat() && pack_rounds() == 0 && rounds_ > 0) {
    own_->packed.store(first_round_ + rounds_, std::memory_order_release);
    communicator_.NotifyAll();
  }
  Scheduler::Turn turn;
  while (unpacked_ < rounds_ || packed_ < pack_rounds()) {
    bool news = false;
    if (CanPack()) {
      PackNext();
      news = true;
    }
    if (CanReduce()) {
      Reduce(reduced_);
      own_->reduced.store(first_round_ + ++reduced_, std::memory_order_release);
      news = true;
    }
    bool unpacked = false;
    if (CanUnpack()) {
      Unpack(unpacked_);
      own_->unpacked.store(first_round_ + ++unpacked_,
                           std::memory_order_release);
      unpacked = true;
      // Nobody waits for the slot of a single round: there is another one.
      news |= rounds() > 1;
    }
    if (news) communicator_.NotifyAll();
    if (news || unpacked) {
      if (rounds_ == 1 || !turn.IsOver()) continue;
      co_await communicator_.GiveWay();
      RING_KERAS_CO_RETURN_IF_ERROR(communicator_.status());
      turn = Scheduler::Turn();
      continue;
    }
    co_await communicator_.Until(
        [this] { return CanPack() || CanReduce() || CanUnpack(); },
        Scheduler::Look::kAlways);
    RING_KERAS_CO_RETURN_IF_ERROR(communicator_.status());
  }
  co_return Status::Ok();
}

}  // namespace ring_keras
