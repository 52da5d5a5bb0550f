// Where posts that come to a communicator find their channels.
//
// A peer may have made a channel before this rank has, and may not have heard
// yet that this one has let it go: posts for the first are kept, and those of
// the second, of which is known how many they are, are dropped.
#ifndef RING_KERAS_COLLECTIVES_POST_INBOX_H_
#define RING_KERAS_COLLECTIVES_POST_INBOX_H_

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tf_ops/collectives/post_message.h"
#include "tf_ops/common/status.h"

namespace ring_keras {

class PostReceiver {
 public:
  virtual ~PostReceiver() = default;
  // Error: no peer that is sound sends that.
  virtual Status OnPost(int rank, PostMessage&& post) = 0;
  // `rank` waits in that use.
  virtual void OnWaiting(int rank, uint64_t use) = 0;
};

// The driver's. Ranks are places in the communicator.
class PostInbox {
 public:
  // From here on the channel's posts go to `receiver`, which gets those that
  // came early now.
  Status Open(uint64_t key, PostReceiver* receiver);
  // The receiver goes; so many posts are still on their way to it.
  void Close(uint64_t key, int outstanding);

  Status Take(uint64_t key, int rank, PostMessage&& post);
  void TakeWaiting(uint64_t key, int rank, uint64_t use);
  // Channels that are there, or of which posts have come early or are to come.
  size_t channel_count() const { return channels_.size(); }

 private:
  struct Channel {
    PostReceiver* receiver = nullptr;
    std::vector<std::pair<int, PostMessage>> early;
    int to_drop = 0;
  };
  std::unordered_map<uint64_t, Channel> channels_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_COLLECTIVES_POST_INBOX_H_
