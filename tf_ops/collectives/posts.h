// How the ranks of a channel find out that all are in its next use, and mean
// the same by it.
//
// Each posts a signature of what it is about to do. Where all ranks share
// memory the posts are in their windows (window_posts.h); else they travel, and
// what is small of the data with them (message_posts.h).
#ifndef RING_KERAS_COLLECTIVES_POSTS_H_
#define RING_KERAS_COLLECTIVES_POSTS_H_

#include <cstdint>
#include <optional>

#include "tf_ops/collectives/collective.h"

namespace ring_keras {

// Ranks are places in the communicator. The driver's.
class Posts {
 public:
  virtual ~Posts() = default;

  // A signature that agrees with no other: this rank cannot take part.
  static constexpr uint64_t kCannot = 0;

  // Enters the next use, for which Agreed() may have been asked in the last
  // one.
  virtual void Enter(uint64_t signature, const Participant& own) = 0;
  // Whether every rank has entered it, so that all is known of the others.
  virtual bool All() const = 0;
  // Afterwards: whether all ranks gave the same signature. They find the same.
  virtual bool Agreed() const = 0;
  // The same: writes down what the others gave.
  virtual void Describe(Participants* participants) const = 0;

  // It has ended: what has been described is not needed any more.
  virtual void Leave() {}

  // Whether `rank` is known to have entered the present use, or a later one.
  virtual bool HasPosted(int rank) const = 0;
  // Whether this rank is kept waiting by a word that `rank` itself must give.
  virtual bool Needs(int rank) const = 0;
  // By which messages name the present use; none: it needs no messages.
  virtual std::optional<uint64_t> data_key() const { return std::nullopt; }
  // The one that was missing last; -1: none was in this use.
  virtual int last_missing() const = 0;
  // Whether `rank` is known to be in a use that this rank has not entered.
  virtual bool IsAhead(int rank) const = 0;
  // Whether a peer cannot take part in the use that comes next.
  virtual bool PeerCannot() const = 0;
  // Lets all ranks know that this one waits in the present use, if they do not
  // see that anyway.
  virtual void TellAll() {}
};

}  // namespace ring_keras

#endif  // RING_KERAS_COLLECTIVES_POSTS_H_
