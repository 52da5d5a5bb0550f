// Windows that the uses of one name share, one use after the other.
//
// The first uses of a name are announced in full. After that every rank knows
// where the others' windows are, and all that is left to find out is whether
// all ranks mean the same collective: each posts a signature of its arguments,
// and equal signatures stand for equal announcements.
//
// Why two posts are enough. Use n is posted in posts[n mod 2], by the window's
// owner alone, `use` last, with release. A rank posts n + 1 only when it has
// ended use n, for which it needed every rank's post of n.
// 1. No post is overwritten that is still to be read: whoever posts n + 2 has
//    seen every rank's post of n + 1, so all have ended n.
// 2. No post is read that is not complete: of posts[n mod 2] the rest is read
//    once `use` is n, loaded with acquire, and until this rank has ended n
//    nobody writes there, by 1.
// 3. Between n and n + 1 a rank may read posts of n + 1, as PeerHasEnded does:
//    n + 3, which lies there too, waits for this rank's own n + 1.
// 4. Who posts n has unpacked every round of n - 1. So when use n ends, what
//    came before its first round is unpacked everywhere: Finish counts on it.
#ifndef RING_KERAS_COLLECTIVES_CHANNEL_H_
#define RING_KERAS_COLLECTIVES_CHANNEL_H_

#include <cstdint>

#include "tf_ops/collectives/collective.h"
#include "tf_ops/collectives/communicator.h"

namespace ring_keras {

class Channel : public WindowKeeper {
 public:
  // Goes on with the windows of `participants`, each with kWindowSlots slots of
  // `slot_nbytes` and counters at `round`, which is the same on every rank.
  Channel(Communicator& communicator, Participants participants,
          size_t slot_nbytes, uint64_t round);
  ~Channel() override { Release(); }
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Lets the windows go, on every rank: each sees, at the next use or before,
  // that this one cannot take part.
  void End() override;
  bool ended() const { return state_ == State::kEnded; }
  bool idle() const override { return state_ == State::kIdle; }
  bool PeerHasEnded() const override;

  size_t slot_nbytes() const { return slot_nbytes_; }
  // What the next use may write to.
  WindowUse NextUse();

  // A signature that agrees with no other: this rank cannot take part.
  static constexpr uint64_t kCannot = 0;

  // Enters the next use. What is packed by now, the peers may read.
  void Post(uint64_t signature, const Participant& own);
  bool HasPosted(int rank) const;
  bool AllPosted() const;
  // The one that was missing when AllPosted() was last false; -1: it never was
  // in this use.
  int last_missing() const { return last_missing_; }
  // Whether all ranks, which have posted, gave the same signature.
  bool Agreed() const;
  // Whether `rank` is in a use that this rank has not entered.
  bool IsAhead(int rank) const;

  // What the ranks posted for the present use; until the next.
  const Participants& participants();
  // The present use has ended, after `rounds` rounds.
  void Finish(uint64_t rounds) {
    // Who entered this use has ended the one before.
    unpacked_ = round_;
    round_ += rounds;
    state_ = State::kIdle;
  }

 private:
  enum class State {
    kIdle,
    kInUse,  // Between Post and Finish.
    kEnded,
  };
  // Gives this rank's window back, once its peers have let theirs go.
  void Release();
  Window& window(int rank) const { return *participants_[rank].window; }
  const WindowPost& post(int rank) const {
    return window(rank).posts[use_ % 2];
  }

  Communicator& communicator_;
  Participants participants_;
  size_t slot_nbytes_;
  uint64_t round_;
  uint64_t unpacked_ = 0;  // Rounds that every rank has unpacked, at least.
  uint64_t use_ = 0;
  mutable int last_missing_ = -1;
  State state_ = State::kIdle;
};

}  // namespace ring_keras

#endif  // RING_KERAS_COLLECTIVES_CHANNEL_H_
