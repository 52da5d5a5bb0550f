// Posts in windows: a cache line of each rank's, which all others look at.
//
// Why two are enough. Use n is posted in posts[n mod 2], by the window's owner
// alone, `use` last, with release. A rank posts n + 1 only when it has ended
// use n, for which it needed every rank's post of n.
// 1. No post is overwritten that is still to be read: whoever posts n + 2 has
//    seen every rank's post of n + 1, so all have ended n.
// 2. No post is read that is not complete: of posts[n mod 2] the rest is read
//    once `use` is n, loaded with acquire, and until this rank has ended n
//    nobody writes there, by 1.
// 3. Between n and n + 1 a rank may read posts of n + 1, as PeerCannot does:
//    n + 3, which lies there too, waits for this rank's own n + 1.
#ifndef RING_KERAS_COLLECTIVES_WINDOW_POSTS_H_
#define RING_KERAS_COLLECTIVES_WINDOW_POSTS_H_

#include <cstdint>

#include "tf_ops/collectives/communicator.h"
#include "tf_ops/collectives/posts.h"

namespace ring_keras {

class WindowPosts final : public Posts {
 public:
  // In the windows of `participants`, which outlive this.
  WindowPosts(Communicator& communicator, const Participants& participants)
      : communicator_(communicator), participants_(participants) {}

  void Enter(uint64_t signature, const Participant& own) override;
  bool All() const override;
  bool Agreed() const override;
  void Describe(Participants* participants) const override;
  bool HasPosted(int rank) const override;
  bool Needs(int rank) const override { return !HasPosted(rank); }
  int last_missing() const override { return last_missing_; }
  bool IsAhead(int rank) const override;
  bool PeerCannot() const override;

 private:
  Window& window(int rank) const { return *participants_[rank].window; }
  const WindowPost& post(int rank) const {
    return window(rank).posts[use_ % 2];
  }

  Communicator& communicator_;
  const Participants& participants_;
  uint64_t use_ = 0;
  mutable int last_missing_ = -1;
};

}  // namespace ring_keras

#endif  // RING_KERAS_COLLECTIVES_WINDOW_POSTS_H_
