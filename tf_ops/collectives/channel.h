// What the uses of one name share, one use after the other.
//
// The first uses of a name are announced in full. After that all that is left
// to find out is whether all ranks mean the same collective: each posts a
// signature of its arguments (posts.h), and equal signatures stand for equal
// announcements.
//
// If all ranks share memory, the channel keeps their windows, which all know.
// Else it keeps none: a use that needs some has them given out anew.
//
// Who posts use n has ended use n - 1, and so unpacked every round of it. So
// when use n ends, what came before its first round is unpacked everywhere:
// Finish counts on it.
#ifndef RING_KERAS_COLLECTIVES_CHANNEL_H_
#define RING_KERAS_COLLECTIVES_CHANNEL_H_

#include <cstdint>
#include <memory>

#include "tf_ops/collectives/collective.h"
#include "tf_ops/collectives/communicator.h"
#include "tf_ops/collectives/posts.h"

namespace ring_keras {

class Channel : public WindowKeeper {
 public:
  // Goes on with the windows of `participants`, each with slots of
  // `slot_nbytes` and counters at `round`, which is the same on every rank; or
  // without any, if none has one. The key of `participants` names it.
  Channel(Communicator& communicator, Participants participants,
          size_t slot_nbytes, uint64_t round);
  ~Channel() override { Release(); }
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Lets the windows go, on every rank: each finds, at the next use or before,
  // that this one cannot take part.
  void End() override;
  bool ended() const { return state_ == State::kEnded; }
  bool idle() const override { return state_ == State::kIdle; }
  bool PeerHasEnded() const override { return posts_->PeerCannot(); }

  // Whether it keeps windows, in which the posts are. It counts for
  // KeptWindows.
  bool has_windows() const { return has_windows_; }
  size_t slot_nbytes() const { return slot_nbytes_; }
  // What the next use may write to.
  WindowUse NextUse();

  // Enters the next use. What is packed by now, the peers may read.
  void Post(uint64_t signature, const Participant& own);
  // The other ranks' posts for it.
  const Posts& posts() const { return *posts_; }
  // Every rank has entered it: what all posted; until the next use. Windows
  // that it does not keep are the caller's to fill in.
  Participants& participants();
  // Lets all ranks know that this one waits in it.
  void TellAll() { posts_->TellAll(); }
  // The present use has ended, after `rounds` rounds.
  void Finish(uint64_t rounds) {
    // Who entered this use has ended the one before.
    unpacked_ = round_;
    round_ += rounds;
    state_ = State::kIdle;
    if (!has_windows_) Forget();
  }

 private:
  enum class State {
    kIdle,
    kInUse,  // Between Post and Finish.
    kEnded,
  };
  // What the others showed for the use that has ended.
  void Forget();
  // Gives this rank's window back, once its peers have let theirs go.
  void Release();
  Window* own_window() const {
    return participants_[communicator_.rank()].window;
  }

  Communicator& communicator_;
  Participants participants_;
  const bool has_windows_;
  const std::unique_ptr<Posts> posts_;
  size_t slot_nbytes_;
  uint64_t round_;
  uint64_t unpacked_ = 0;  // Rounds that every rank has unpacked, at least.
  State state_ = State::kIdle;
};

}  // namespace ring_keras

#endif  // RING_KERAS_COLLECTIVES_CHANNEL_H_
