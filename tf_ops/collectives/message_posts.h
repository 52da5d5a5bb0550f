// Posts that travel, where not all ranks share memory: each rank hears from all
// in few trips (post_route.h).
//
// In each trip a rank tells one other what it knows: whether all ranks of which
// it has heard gave the same signature, and the payloads of as many of them as
// the other lacks. After the last trip every rank has heard, by way of others,
// from all. So all come to the same verdict: a disagreement that one rank has
// seen is in all that it says from then on. A rank that cannot take part need
// not listen: it says so to all who wait for its word, at once.
//
// What comes may be of this use or of the next, not later: whoever is in use
// n + 2 has ended n + 1, for which it has heard from this rank. A rank gives
// another one word in each use, so two places for each are enough.
//
// Who came last is told with how long ago that was, so that no clock need agree
// with another: what is on its way looks later by that, no more.
//
// Ranks whose weights differ disagree, too: the use is announced, and leaves no
// channel.
#ifndef RING_KERAS_COLLECTIVES_MESSAGE_POSTS_H_
#define RING_KERAS_COLLECTIVES_MESSAGE_POSTS_H_

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tf_ops/collectives/communicator.h"
#include "tf_ops/collectives/post_inbox.h"
#include "tf_ops/collectives/post_message.h"
#include "tf_ops/collectives/post_route.h"
#include "tf_ops/collectives/posts.h"

namespace ring_keras {

class MessagePosts final : public Posts, public PostReceiver {
 public:
  // `key` is the same on every rank, and no other channel's.
  MessagePosts(Communicator& communicator, uint64_t key);
  ~MessagePosts() override;
  MessagePosts(const MessagePosts&) = delete;
  MessagePosts& operator=(const MessagePosts&) = delete;

  void Enter(uint64_t signature, const Participant& own) override;
  bool All() const override { return trip_ == route_.trip_count(); }
  bool Agreed() const override { return signature_ != kCannot; }
  void Describe(Participants* participants) const override;
  void Leave() override { payloads_ = std::string(); }
  bool HasPosted(int rank) const override;
  bool Needs(int rank) const override;
  std::optional<uint64_t> data_key() const override;
  int last_missing() const override {
    return last_rank_ == communicator_.rank() ? -1 : last_rank_;
  }
  bool IsAhead(int rank) const override;
  bool PeerCannot() const override;
  void TellAll() override;

  Status OnPost(int rank, PostMessage&& post) override;
  void OnWaiting(int rank, uint64_t use) override;

 private:
  using Clock = std::chrono::steady_clock;

  struct Word {
    PostMessage post;
    Clock::time_point last_at;  // When who came last, as far as it says, came.
  };
  // By trip.
  using Came = std::vector<std::optional<Word>>;

  Came& came(uint64_t use) { return came_[use % 2]; }
  const Came& came(uint64_t use) const { return came_[use % 2]; }
  void Send(int trip);
  // Takes what has come, trip by trip, and says what that lets it say.
  Status Advance();
  Status Merge(const Word& word, int trip);
  // What came before this rank must not look as if it came after.
  void ReadWhatIsThere() noexcept;

  Communicator& communicator_;
  const uint64_t key_;
  const PostRoute& route_;
  uint64_t use_ = 0;
  int trip_;  // The one for whose word it waits.
  std::array<Came, 2> came_;

  // Of the present use.
  uint64_t signature_ = kCannot;
  double weight_ = 1.0;
  size_t payload_nbytes_ = 0;
  std::string payloads_;  // Of those of which it knows, as route_ has them.
  int last_rank_ = 0;
  Clock::time_point last_at_;
  bool has_said_all_ = false;  // That it cannot take part.

  // By rank, the use in which it waits; empty: none has said so.
  std::vector<uint64_t> waiting_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_COLLECTIVES_MESSAGE_POSTS_H_
