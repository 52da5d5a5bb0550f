// The store's server: one thread that serves every connection.
#ifndef RING_KERAS_RENDEZVOUS_STORE_SERVER_LOOP_H_
#define RING_KERAS_RENDEZVOUS_STORE_SERVER_LOOP_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tf_ops/common/deadline.h"
#include "tf_ops/common/socket.h"
#include "tf_ops/common/store.h"
#include "tf_ops/rendezvous/gather_table.h"
#include "tf_ops/rendezvous/handshake_acceptor.h"
#include "tf_ops/rendezvous/rank_ledger.h"
#include "tf_ops/rendezvous/selector.h"
#include "tf_ops/rendezvous/store_connection.h"
#include "tf_ops/rendezvous/tcp_store_server.h"
#include "tf_ops/rendezvous/wake_up.h"
#include "tf_ops/rendezvous/warning_limiter.h"

namespace ring_keras::rendezvous {

class StoreServerLoop {
 public:
  // Errors: ResourceExhausted, Internal.
  static StatusOr<std::unique_ptr<StoreServerLoop>> Make(
      const TcpStoreServerOptions& options, FileDescriptor listener);

  // The thread's body; returns after Stop().
  void Run();

  // From any thread.
  void Stop();
  void ReportExit(int rank, const std::string& how);
  std::vector<RankEvent> ended_ranks() const;
  int connected_ranks() const;

 private:
  // What the selector calls what it watches; connections have higher numbers.
  static constexpr uint64_t kWakeUp = 0;
  static constexpr uint64_t kAcceptor = 1;

  StoreServerLoop(const TcpStoreServerOptions& options, FileDescriptor listener,
                  WakeUp wake_up, Selector selector, Selector untrusted);

  // Waits once and does what there is to do. False: it was the last time, since
  // Stop() had been called.
  bool Turn();
  int PollTimeoutMs() const;
  void TakeExitReports();

  Admission Admit(const HandshakeParty& peer, const std::string& address);
  void Welcome(std::vector<TrustedConnection> admitted);
  // With what follows the handshake, in the clear or not.
  StatusOr<PeerSocket> Secure(FileDescriptor socket, int rank);
  void BeginGeneration();
  void Serve(StoreConnection& connection);

  // In store_server_requests.cc.
  void ServeFrames(StoreConnection& connection);
  // InvalidArgument: the frame makes no sense now.
  Status Handle(StoreConnection& connection, const Frame& frame);
  void HandleGather(StoreConnection& connection, const Frame& frame);
  void HandleCancel(StoreConnection& connection, uint64_t request_id);
  StoreConnection* MemberOf(int rank);
  // Why a gather will not be complete any more; Ok if it may.
  Status EndedRankError(const std::string& topic) const;

  // Logs why, and forgets the connection; its rank, if it had one, is lost.
  void Drop(StoreConnection& connection, const std::string& why);
  void CloseMember(StoreConnection& connection, const std::string& how,
                   bool by_rank);
  // It is in the job no more, and waits for nothing.
  void Expel(StoreConnection& connection);
  void DropOverdue();
  void Tick();
  // How many seconds a rank may be silent.
  double LimitOf(StoreConnection& connection, bool hears_somebody) const;
  void AnnounceEvents(RankLedger::TimePoint now);
  void FailWaits();

  // Sends at the end of this turn.
  void Send(StoreConnection& connection, std::string bytes);
  void Send(StoreConnection& connection,
            std::shared_ptr<const std::string> bytes);
  // At the end of this turn its socket is written, if there is something to
  // write, and it is forgotten if it is closed.
  void Touch(const StoreConnection& connection) {
    touched_.push_back(connection.id());
  }
  void FinishTouched();

  const TcpStoreServerOptions options_;
  const WakeUp wake_up_;
  const double tick_s_;

  // The thread's own.
  Selector selector_;
  HandshakeAcceptor acceptor_;
  std::map<uint64_t, std::unique_ptr<StoreConnection>> connections_;
  uint64_t next_id_ = kAcceptor + 1;
  std::vector<uint64_t> touched_;
  std::vector<StoreConnection*> members_;  // By rank; null: not in the job.
  GatherTable gathers_;
  RankLedger ledger_;
  WarningLimiter warnings_;
  Deadline next_tick_;

  mutable std::mutex mutex_;
  bool stop_ = false;                                      // Under mutex_.
  std::vector<std::pair<int, std::string>> exit_reports_;  // Under mutex_.
  // Announced so far in this generation. Under mutex_, but the thread itself
  // may read it without.
  std::vector<RankEvent> ended_;
  int connected_ranks_ = 0;  // Under mutex_.
};

}  // namespace ring_keras::rendezvous

#endif  // RING_KERAS_RENDEZVOUS_STORE_SERVER_LOOP_H_
