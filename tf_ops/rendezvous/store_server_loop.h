// The store's server: one thread that polls every connection.
#ifndef RING_KERAS_RENDEZVOUS_STORE_SERVER_LOOP_H_
#define RING_KERAS_RENDEZVOUS_STORE_SERVER_LOOP_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tf_ops/common/deadline.h"
#include "tf_ops/common/socket.h"
#include "tf_ops/common/store.h"
#include "tf_ops/rendezvous/handshake_acceptor.h"
#include "tf_ops/rendezvous/key_table.h"
#include "tf_ops/rendezvous/rank_ledger.h"
#include "tf_ops/rendezvous/store_connection.h"
#include "tf_ops/rendezvous/tcp_store_server.h"
#include "tf_ops/rendezvous/wake_up.h"
#include "tf_ops/rendezvous/warning_limiter.h"

namespace ring_keras::rendezvous {

class StoreServerLoop {
 public:
  StoreServerLoop(const TcpStoreServerOptions& options, FileDescriptor listener,
                  WakeUp wake_up);

  // The thread's body; returns after Stop().
  void Run();

  // From any thread.
  void Stop();
  void ReportExit(int rank, const std::string& how);
  std::vector<RankEvent> ended_ranks() const;
  int connected_ranks() const;

 private:
  // Polls once and does what there is to do. False: it was the last time, since
  // Stop() had been called.
  bool Turn();
  int PollTimeoutMs() const;
  void TakeExitReports();

  Admission Admit(const HandshakeParty& peer, const std::string& address);
  void Welcome(std::vector<TrustedConnection> admitted);
  void BeginGeneration();
  void Serve(StoreConnection& connection);

  // In store_server_requests.cc.
  void ServeFrames(StoreConnection& connection, const std::string& bytes);
  // InvalidArgument: the frame makes no sense now.
  Status Handle(StoreConnection& connection, const Frame& frame);
  void HandleSet(StoreConnection& connection, const Frame& frame);
  void HandleGet(StoreConnection& connection, const Frame& frame);
  StoreConnection* MemberOf(int rank);
  // Why a key that nobody has set will not be set any more; Ok if it may.
  Status EndedRankError(const std::string& key) const;

  // Logs why, and forgets the connection; its rank, if it had one, is lost.
  void Drop(StoreConnection& connection, const std::string& why);
  void CloseMember(StoreConnection& connection, const std::string& how);
  void DropOverdue();
  void Tick();
  void AnnounceEvents(RankLedger::TimePoint now);

  const TcpStoreServerOptions options_;
  const WakeUp wake_up_;
  const double tick_s_;

  // The thread's own.
  HandshakeAcceptor acceptor_;
  std::vector<std::unique_ptr<StoreConnection>> connections_;
  KeyTable keys_;
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
