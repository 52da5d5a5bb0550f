// A thread that takes the connections of proven peers, on one address or more.
#ifndef RING_KERAS_RUNTIME_ACCEPTOR_THREAD_H_
#define RING_KERAS_RUNTIME_ACCEPTOR_THREAD_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tf_ops/common/socket.h"
#include "tf_ops/common/status.h"
#include "tf_ops/rendezvous/handshake_acceptor.h"
#include "tf_ops/rendezvous/wake_up.h"

namespace ring_keras {

class AcceptorThread {
 public:
  using Admit = rendezvous::HandshakeAcceptor::Admit;
  using Take = std::function<void(rendezvous::TrustedConnection)>;

  // `admit` and `take` are called on the thread, until the end of the
  // destructor, which waits for no untrusted peer.
  static StatusOr<std::unique_ptr<AcceptorThread>> Start(
      const rendezvous::HandshakeAcceptorOptions& options,
      std::vector<FileDescriptor> listeners, const Admit& admit, Take take);
  ~AcceptorThread();
  AcceptorThread(const AcceptorThread&) = delete;
  AcceptorThread& operator=(const AcceptorThread&) = delete;

 private:
  using Acceptors = std::vector<std::unique_ptr<rendezvous::HandshakeAcceptor>>;

  AcceptorThread(Acceptors acceptors, Take take, rendezvous::WakeUp wake_up);

  void Run();

  const Acceptors acceptors_;  // The thread's own.
  const Take take_;
  const rendezvous::WakeUp wake_up_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_RUNTIME_ACCEPTOR_THREAD_H_
