// Where the ranks of a job exchange what they need to meet, and the arbiter of
// who died.
//
// It runs in the launcher's process, not in a rank's, so that it outlives every
// rank. Only peers that hold the job's token get past the handshake; whoever
// does not is dropped, with a warning, and costs no more than limits.h says.
#ifndef RING_KERAS_RENDEZVOUS_TCP_STORE_SERVER_H_
#define RING_KERAS_RENDEZVOUS_TCP_STORE_SERVER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tf_ops/common/export.h"
#include "tf_ops/common/status.h"
#include "tf_ops/common/store.h"
#include "tf_ops/rendezvous/limits.h"

namespace ring_keras {

struct TcpStoreServerOptions {
  std::string bind_address = "127.0.0.1";  // Exactly one; never a wildcard.
  int port = 0;                            // 0: any free one.
  int size = 1;                            // Ranks of the job.
  uint64_t generation = 0;                 // The first.
  std::string token;                       // 32 bytes.
  // What follows the handshakes; ranks that do not do the same are refused.
  bool encrypts = false;

  // A rank that is silent for so long is lost although its connection is open;
  // 0: never. Paused machines do not count.
  double heartbeat_timeout_s = kHeartbeatTimeoutS;
  // The same for all ranks at once, if that is longer.
  double all_silent_timeout_s = 0;
  double handshake_timeout_s = kHandshakeTimeoutS;
};

class RING_KERAS_EXPORT TcpStoreServer {
 public:
  // Listens and serves when it returns. Errors: InvalidArgument (options),
  // ResourceExhausted (it may not open as many descriptors as there are ranks),
  // Internal (the address cannot be bound,
  // there is no OpenSSL).
  static StatusOr<std::unique_ptr<TcpStoreServer>> Start(
      const TcpStoreServerOptions& options);

  ~TcpStoreServer();
  TcpStoreServer(const TcpStoreServer&) = delete;
  TcpStoreServer& operator=(const TcpStoreServer&) = delete;

  int port() const;

  // Ends the service; ranks that are still connected see the store go.
  // A rank whose process has ended, or whose connection has, is judged before.
  // Idempotent. The other functions go on working.
  void Close();

  // The ranks of the latest generation that have died or left, in the order in
  // which it was found.
  std::vector<RankEvent> ended_ranks() const;

  // How many ranks are connected, as of a moment ago; 0 once closed.
  int connected_ranks() const;

  // Says how the process of `rank` ended, for instance "was killed by SIGKILL"
  // or "exited with code 1". The rank is lost, unless it had left before: at
  // once if it never joined or its connection is closed; else after a moment,
  // as its last frame may be on the way. InvalidArgument: no such rank.
  Status ReportExit(int rank, const std::string& how);

 private:
  struct Impl;
  explicit TcpStoreServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_RENDEZVOUS_TCP_STORE_SERVER_H_
