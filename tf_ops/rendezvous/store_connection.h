// One connection of the store's server: bytes and state, no decisions.
#ifndef RING_KERAS_RENDEZVOUS_STORE_CONNECTION_H_
#define RING_KERAS_RENDEZVOUS_STORE_CONNECTION_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "tf_ops/common/deadline.h"
#include "tf_ops/common/status.h"
#include "tf_ops/rendezvous/peer_socket.h"
#include "tf_ops/rendezvous/store_protocol.h"

namespace ring_keras::rendezvous {

class StoreConnection {
 public:
  enum class State {
    kNaming,    // Its hello is awaited.
    kReady,     // A rank of the job.
    kDraining,  // Only its last messages go out, until they have.
    kClosed,    // To be forgotten.
  };

  // A rank that has proven itself and says hello by `deadline`.
  StoreConnection(uint64_t id, PeerSocket socket, int rank, std::string address,
                  Deadline deadline);

  uint64_t id() const { return id_; }

  int fd() const { return socket_.fd(); }
  const std::string& address() const { return address_; }
  FrameReader& reader() { return reader_; }
  int rank() const { return rank_; }

  State state() const { return state_; }
  void set_state(State state) { state_ = state; }
  bool IsMember() const {
    return state_ == State::kNaming || state_ == State::kReady;
  }

  // What comes is dropped. Once everything queued is sent, this end says that
  // there is no more, and waits for the peer's: a socket that is closed before
  // takes with it what the peer has not read. Closes after `timeout_s` at last.
  void Drain(double timeout_s);

  // By when this state must be over; meaningless when ready.
  bool Overdue() const;

  // What a selector is to watch for.
  uint32_t Events() const;
  // The same, as it was told last.
  uint32_t watched_events = 0;

  // Reads what is there, at most one chunk, into the reader, or drops it.
  // Error: there is no more.
  Status Receive();

  // Queues bytes that others may have to send as well.
  void Queue(std::shared_ptr<const std::string> bytes);
  // Sends what the socket takes. A broken connection is left for Receive() to
  // find: what the peer said before it went may still be unread.
  void Flush();

  // The heartbeat: ticks of the server since anything came.
  int silent_ticks = 0;
  // Those of them in which nothing came from any rank.
  int excused_ticks = 0;

 private:
  uint64_t id_;
  PeerSocket socket_;
  int rank_;
  std::string address_;
  FrameReader reader_;
  Deadline deadline_;
  State state_ = State::kNaming;
  std::deque<std::shared_ptr<const std::string>> queued_;  // None is empty.
  size_t queued_nbytes_ = 0;
  size_t sent_nbytes_ = 0;  // Of the first.
  bool has_said_all_ = false;
};

}  // namespace ring_keras::rendezvous

#endif  // RING_KERAS_RENDEZVOUS_STORE_CONNECTION_H_
