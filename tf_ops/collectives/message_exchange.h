// The messages of one collective that are under way.
#ifndef RING_KERAS_COLLECTIVES_MESSAGE_EXCHANGE_H_
#define RING_KERAS_COLLECTIVES_MESSAGE_EXCHANGE_H_

#include <chrono>
#include <cstdint>
#include <cstring>
#include <deque>
#include <optional>
#include <thread>

#include "tf_ops/collectives/abandoned_memory.h"
#include "tf_ops/collectives/communicator.h"
#include "tf_ops/common/deadline.h"
#include "tf_ops/reduce/reduce.h"

namespace ring_keras {

class MessageExchange {
 public:
  MessageExchange(Communicator& communicator, uint64_t key)
      : communicator_(communicator), key_(key) {}
  // Nothing may touch the operations of an exchange that failed; they go.
  ~MessageExchange() {
    while (Left() > 0 && !HasLetGo()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
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

  // Awaitable: everything so far but the last `count` has been sent, or
  // received, by an exchange that does one of these; or the communicator is
  // broken, and no stream needs memory of this exchange's.
  auto AllBut(size_t count) {
    return communicator_.UntilAlways([this, count] {
      return Left() <= count || (!communicator_.status().ok() && HasLetGo());
    });
  }
  // The same of everything so far, of any exchange.
  auto Done() { return AllBut(0); }

 private:
  // How many are under way behind the first ones that have ended.
  size_t Left() {
    while (!sends_.empty() && sends_.front().done()) sends_.pop_front();
    while (!receives_.empty() && receives_.front().done()) {
      receives_.pop_front();
    }
    return sends_.size() + receives_.size();
  }

  // Ends what is under way; whether its memory is the caller's again.
  bool HasLetGo() {
    const bool first = !let_go_.has_value();
    if (first) let_go_ = Deadline::After(kLetGoS);
    bool held = false;
    for (int rank = 0; rank < communicator_.size(); ++rank) {
      if (rank == communicator_.rank()) continue;
      Pair& pair = communicator_.pair(rank);
      if (first) pair.Cancel(key_);
      if (!pair.Holds(key_)) continue;
      held = true;
      if (let_go_->Expired()) {
        AbandonProcess(communicator_.ranks()[rank], communicator_.status());
      }
    }
    return !held;
  }

  // Longer than a live peer takes to look at what has come.
  static constexpr double kLetGoS = 10;

  Communicator& communicator_;
  uint64_t key_;
  std::optional<Deadline> let_go_;
  std::deque<SendOperation> sends_;
  std::deque<ReceiveOperation> receives_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_COLLECTIVES_MESSAGE_EXCHANGE_H_
