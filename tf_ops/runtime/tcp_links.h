// Makes this rank's TCP connections to other ranks: all in init(), or each when
// it is needed.
//
// Of two ranks the higher one connects, at the latest when it is the first time
// to send something to the other or to receive from it; the lower one listens.
// Both take part in what is sent, so both need the connection at about the same
// time, and there are never two. Both prove that they hold the job's token
// before it counts; whoever fails to is dropped and logged, and the job goes
// on.
#ifndef RING_KERAS_RUNTIME_TCP_LINKS_H_
#define RING_KERAS_RUNTIME_TCP_LINKS_H_

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tf_ops/common/deadline.h"
#include "tf_ops/common/status.h"
#include "tf_ops/common/store.h"
#include "tf_ops/runtime/acceptor_thread.h"
#include "tf_ops/runtime/link_addresses.h"
#include "tf_ops/runtime/tcp_link_options.h"
#include "tf_ops/transport/link_source.h"
#include "tf_ops/transport/tcp/poller.h"

namespace ring_keras {

class TcpLinks : public LinkSource {
 public:
  // Listens for `peers` from now on. Every rank of the job calls this at the
  // same time; addresses are exchanged through `store`. `poller` outlives the
  // streams. `on_new`: has_new() may have become true; called from threads of
  // its own until the destructor ends.
  //
  // Errors: RankMismatch (of the number of streams), ResourceExhausted,
  // DeadlineExceeded, Interrupted, PeerLost, Internal.
  static StatusOr<std::unique_ptr<TcpLinks>> Start(
      const TcpLinkOptions& options, const std::vector<int>& peers,
      Poller& poller, std::function<void()> on_new, Store& store,
      Deadline deadline);
  ~TcpLinks() override;

  // Waits until there is a connection to each of `peers`, all of which do the
  // same. Take() gives them. Errors: PeerLost (also: a rank has ended),
  // Internal, DeadlineExceeded, Interrupted, Unauthenticated.
  Status Await(const std::vector<int>& peers, Store& store, Deadline deadline);

  void Open(int peer) override;
  void Forget(int peer) override;
  bool has_new() const override { return has_new_.load(); }
  std::vector<NewLink> Take() override;
  int stream_count() const override { return options_.streams; }

 private:
  using Sockets = std::vector<FileDescriptor>;
  // A connection that is there, or cannot be.
  struct Outcome {
    int peer = -1;
    Status failure;
    Sockets sockets;
    std::pair<std::string, std::string> addresses;
  };

  TcpLinks(const TcpLinkOptions& options, const std::vector<int>& peers,
           Poller& poller, std::function<void()> on_new);

  // The acceptor's thread.
  rendezvous::Admission Admit(const HandshakeParty& peer);
  void Keep(rendezvous::TrustedConnection connection);

  // The thread that connects.
  void Run();
  Outcome ConnectTo(int peer);
  StatusOr<FileDescriptor> Connect(const SocketAddress& address, int peer,
                                   uint32_t stream);
  // What became of attempts that did not get to the peer's host.
  Status NotReached(const Status& last) const;
  // After an attempt. False: the peer has ended, or this rank stops.
  bool Rest(int peer, std::string why);

  // For Await(), of a connection that cannot be, and of one that is not there.
  Status CannotReach(const Outcome& outcome) const;
  Status IsMissing(int peer) const;
  void Finish(Outcome outcome);
  bool IsGivenUp(int peer);

  const TcpLinkOptions options_;
  Poller& poller_;
  const std::function<void()> on_new_;
  std::vector<std::string> addresses_;  // By rank; set by Start().

  std::mutex mutex_;  // Guards what follows, up to the blank line.
  std::condition_variable changed_;
  bool stop_ = false;
  std::map<int, Sockets> accepted_;  // Of higher peers, until complete.
  std::set<int> wanted_;             // Lower peers: asked for, once.
  std::deque<int> to_connect_;
  std::map<int, std::string> last_attempts_;  // Why they failed.
  std::set<int> ended_;
  std::vector<Outcome> outcomes_;

  std::atomic<bool> has_new_{false};
  std::unique_ptr<AcceptorThread> acceptor_;
  std::thread thread_;
};

// The connections to all of `peers`, in init(), encrypted if the options say
// so. Every rank of the job calls this at the same time, also one that has no
// such peers. `poller` outlives them. Errors: those of Start() and Await();
// Unauthenticated also names both ranks between which TLS failed.
StatusOr<std::vector<NewLink>> ConnectAll(TcpLinkOptions options,
                                          const std::vector<int>& peers,
                                          Poller& poller, Store& store,
                                          Deadline deadline);

}  // namespace ring_keras

#endif  // RING_KERAS_RUNTIME_TCP_LINKS_H_
