// A rank's connection to the job's store.
#ifndef RING_KERAS_RENDEZVOUS_TCP_STORE_H_
#define RING_KERAS_RENDEZVOUS_TCP_STORE_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tf_ops/common/deadline.h"
#include "tf_ops/common/status.h"
#include "tf_ops/common/store.h"
#include "tf_ops/rendezvous/peer_socket.h"
#include "tf_ops/rendezvous/store_protocol.h"
#include "tf_ops/rendezvous/wake_up.h"

namespace ring_keras {

struct TcpStoreOptions {
  std::string host;
  int port = 0;
  std::string token;  // 32 bytes.
  int rank = 0;
  int size = 1;             // Ranks of the job.
  uint64_t generation = 0;  // The job's first, as its launcher says.
  bool encrypts = false;    // What follows the handshake.
  std::string host_name;    // How other ranks' messages call this host.
  // As the store has it: for so long it may be silent, too.
  double heartbeat_timeout_s = kHeartbeatTimeoutS;
  Deadline connect_deadline = Deadline::After(120);
};

// Thread-safe. One thread of its own does all input and output: it answers the
// waiting calls, tells the watcher, and pings, so that a rank counts as alive
// whatever its other threads do.
class TcpStore : public Store {
 public:
  // Leaves with the reason "shutdown", unless the rank has left. Not to be
  // called by the watcher.
  ~TcpStore() override;
  TcpStore(const TcpStore&) = delete;
  TcpStore& operator=(const TcpStore&) = delete;

  // A rank that has left fails it as well as one that died: neither will give
  // its value.
  StatusOr<std::vector<std::string>> Gather(const std::string& topic,
                                            const std::string& value,
                                            Deadline deadline) override;

  Status Pause(Deadline deadline) override;

  // Also if it is this one that the store has given up. When the store itself
  // is gone, the watcher gets one event more, kLost with rank -1. `on_event`
  // must not block, nor call anything but Leave.
  void Watch(std::function<void(const RankEvent&)> on_event) override;

  void Leave(const std::string& reason) override;

  // The generation that this rank has joined: see RankLedger.
  uint64_t generation() const { return generation_; }

  // This host's address, numeric, on the way to the store.
  std::string LocalAddress() const { return local_address_; }

 private:
  friend StatusOr<std::unique_ptr<TcpStore>> ConnectTcpStore(
      const TcpStoreOptions& options);

  // A gather that waits for its answer.
  struct Call {
    bool done = false;
    Status status;
    std::string value;
    std::vector<int> missing;  // If it was cancelled.
  };
  using TimePoint = Deadline::Clock::time_point;

  TcpStore(const TcpStoreOptions& options, rendezvous::PeerSocket socket,
           rendezvous::WakeUp wake_up);

  // Sends hello and waits for the server's welcome.
  Status Introduce(const TcpStoreOptions& options);
  // Queues a request, which gets its number, and its call waits for an answer.
  StatusOr<std::shared_ptr<Call>> Start(rendezvous::Frame& request);
  void Cancel(uint64_t request_id);
  // Until `is_over()`, which is called with the lock. Errors: DeadlineExceeded,
  // Interrupted.
  Status WaitFor(std::unique_lock<std::mutex>& lock, Deadline deadline,
                 const std::function<bool()>& is_over);
  bool IsOwnThread() const;

  // The thread's.
  void Run();
  void Turn();
  int PollTimeoutMs() const;
  void Send();
  void Receive();
  void Handle(const rendezvous::Frame& frame);
  void Lose(const std::string& how);
  void TellWatcher();

  // Both under mutex_.
  void Queue(const rendezvous::Frame& frame);
  void FailCalls(const Status& status);

  const int rank_;
  const int size_;
  const std::string server_;  // "host:port", for messages.
  const std::string local_address_;
  const rendezvous::WakeUp wake_up_;

  // The thread's own.
  rendezvous::PeerSocket socket_;
  rendezvous::FrameReader reader_;
  std::string sending_;
  size_t told_count_ = 0;  // Events that the watcher has got.
  Deadline::Clock::duration ping_interval_ = {};
  TimePoint next_ping_ = TimePoint::max();  // Until the server's welcome.

  std::mutex mutex_;  // Guards all that follows.
  std::condition_variable changed_;
  std::string queued_;
  std::map<uint64_t, std::shared_ptr<Call>> calls_;
  uint64_t next_request_id_ = 1;
  std::vector<RankEvent> events_;
  std::function<void(const RankEvent&)> watcher_;
  std::string own_end_;  // What the store said about this rank's end.
  bool welcomed_ = false;
  uint64_t generation_ = 0;  // Set once, before ConnectTcpStore() returns.
  bool left_ = false;
  bool stop_ = false;
  Status gone_;  // Why the connection is no more; Ok while it is.

  std::thread thread_;
};

// Connects, tries again until the deadline, and proves who this is. The store
// knows the rank when it returns. A rank that has left before waits until all
// have. Errors: DeadlineExceeded (nothing answers; some rank has not left),
// Interrupted, Unauthenticated (see handshake.h), InvalidArgument, Internal.
StatusOr<std::unique_ptr<TcpStore>> ConnectTcpStore(
    const TcpStoreOptions& options);

}  // namespace ring_keras

#endif  // RING_KERAS_RENDEZVOUS_TCP_STORE_H_
