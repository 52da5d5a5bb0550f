// The messages of one collective that are under way.
#ifndef RING_KERAS_COLLECTIVES_MESSAGE_EXCHANGE_H_
#define RING_KERAS_COLLECTIVES_MESSAGE_EXCHANGE_H_

#include <cstdint>
#include <cstring>
#include <deque>

#include "tf_ops/collectives/communicator.h"
#include "tf_ops/reduce/reduce.h"

namespace ring_keras {

class MessageExchange {
 public:
  MessageExchange(Communicator& communicator, uint64_t key)
      : communicator_(communicator), key_(key) {}
  // Nothing may touch the operations of an exchange that failed; they go.
  ~MessageExchange() {
    if (done()) return;
    for (int rank = 0; rank < communicator_.size(); ++rank) {
      if (rank != communicator_.rank()) communicator_.pair(rank).Cancel(key_);
    }
  }
  MessageExchange(const MessageExchange&) = delete;
  MessageExchange& operator=(const MessageExchange&) = delete;

  void Send(int to, uint32_t tag, const void* data, size_t nbytes) {
    sends_.emplace_back();
    communicator_.pair(to).Send(key_, tag, data, nbytes, &sends_.back());
  }
  void Receive(int from, uint32_t tag, void* target, size_t nbytes) {
    receives_.push_back({static_cast<char*>(target), nbytes});
    communicator_.pair(from).Receive(key_, tag, &receives_.back());
  }
  // Sends one piece and receives another; with this rank itself, copies.
  void Trade(int with, uint32_t tag, const void* outgoing,
             size_t outgoing_nbytes, void* incoming, size_t incoming_nbytes) {
    if (with != communicator_.rank()) {
      Receive(with, tag, incoming, incoming_nbytes);
      Send(with, tag, outgoing, outgoing_nbytes);
    } else if (incoming_nbytes > 0) {
      std::memcpy(incoming, outgoing, incoming_nbytes);
    }
  }
  // target = combine(target, what comes).
  void ReceiveInto(int from, uint32_t tag, void* target, size_t nbytes,
                   ReduceFunction combine, size_t element_nbytes) {
    receives_.push_back(
        {static_cast<char*>(target), nbytes, combine, element_nbytes});
    communicator_.pair(from).Receive(key_, tag, &receives_.back());
  }

  // Awaitable: everything so far has been sent and received, or the
  // communicator is broken.
  auto Done() {
    return communicator_.Until([this] { return done(); });
  }

 private:
  bool done() {
    while (!sends_.empty() && sends_.front().done()) sends_.pop_front();
    while (!receives_.empty() && receives_.front().done()) {
      receives_.pop_front();
    }
    return sends_.empty() && receives_.empty();
  }

  Communicator& communicator_;
  uint64_t key_;
  std::deque<SendOperation> sends_;
  std::deque<ReceiveOperation> receives_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_COLLECTIVES_MESSAGE_EXCHANGE_H_
