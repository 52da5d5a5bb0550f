#include "tf_ops/collectives/shared_collective.h"

#include <algorithm>
#include <limits>

namespace ring_keras {
namespace {

// A rank that packs no more is ahead of everybody.
constexpr uint64_t kAllPacked = std::numeric_limits<uint64_t>::max();

}  // namespace

std::optional<size_t> SharedCollective::window_nbytes() const {
  const size_t slots = std::min(pack_rounds(), kSlots);
  return slots <= 1 ? first_pack_nbytes() : slots * kSlotBytes;
}

void SharedCollective::Prepare(Window* window) {
  own_ = window;
  if (pack_rounds() == 0) {
    own_->packed.store(kAllPacked, std::memory_order_release);
  } else {
    PackNext();
  }
}

// The lowest value of a counter among all ranks' windows.
uint64_t SharedCollective::Least(Counter counter) const {
  uint64_t least = kAllPacked;
  for (Window* window : windows_) {
    least = std::min(least, (window->*counter).load(std::memory_order_acquire));
  }
  return least;
}

// Each of these does one round of its stage if it can; whether it did.
bool SharedCollective::PackNext() {
  if (packed_ == pack_rounds()) return false;
  if (packed_ >= kSlots && packed_ - kSlots >= Least(&Window::unpacked)) {
    return false;
  }
  Pack(packed_, own_->data() + (packed_ % kSlots) * kSlotBytes);
  ++packed_;
  own_->packed.store(packed_ == pack_rounds() ? kAllPacked : packed_,
                     std::memory_order_release);
  return true;
}

bool SharedCollective::ReduceNext() {
  if (reduced_ == rounds_ || Least(&Window::packed) <= reduced_) return false;
  Reduce(reduced_);
  own_->reduced.store(++reduced_, std::memory_order_release);
  return true;
}

bool SharedCollective::UnpackNext() {
  const Counter before = has_reduce() ? &Window::reduced : &Window::packed;
  if (unpacked_ == rounds_ || Least(before) <= unpacked_) return false;
  Unpack(unpacked_);
  own_->unpacked.store(++unpacked_, std::memory_order_release);
  return true;
}

Task SharedCollective::Run(const Participants& participants) {
  for (const Participant& participant : participants) {
    windows_.push_back(participant.window);
  }
  StatusOr<size_t> rounds = Begin(participants);
  if (!rounds.ok()) {
    // The peers go on without us; let them not wait for this rank's memory.
    communicator_.Break(rounds.status());
    co_return rounds.status();
  }
  rounds_ = rounds.value();
  if (!has_reduce()) reduced_ = rounds_;
  while (unpacked_ < rounds_ || packed_ < pack_rounds()) {
    bool advanced = PackNext();
    advanced |= ReduceNext();
    advanced |= UnpackNext();
    if (advanced) {
      communicator_.NotifyAll();
      continue;
    }
    co_await communicator_.Until([this] {
      if (packed_ < pack_rounds() &&
          packed_ - kSlots < Least(&Window::unpacked)) {
        return true;
      }
      if (reduced_ < rounds_ && Least(&Window::packed) > reduced_) return true;
      const Counter before = has_reduce() ? &Window::reduced : &Window::packed;
      return unpacked_ < rounds_ && Least(before) > unpacked_;
    });
    RING_KERAS_CO_RETURN_IF_ERROR(communicator_.status());
  }
  for (Window* window : windows_) {
    if (window != own_) {
      window->readers_done.fetch_add(1, std::memory_order_release);
    }
  }
  co_return Status::Ok();
}

}  // namespace ring_keras
