#include "tf_ops/runtime/acceptor_thread.h"

#include <poll.h>

#include <utility>

namespace ring_keras {

using rendezvous::HandshakeAcceptor;
using rendezvous::HandshakeAcceptorOptions;
using rendezvous::Selector;
using rendezvous::TrustedConnection;
using rendezvous::WakeUp;

StatusOr<std::unique_ptr<AcceptorThread>> AcceptorThread::Start(
    const HandshakeAcceptorOptions& options,
    std::vector<FileDescriptor> listeners, const Admit& admit, Take take) {
  Acceptors acceptors;
  for (FileDescriptor& listener : listeners) {
    StatusOr<Selector> selector = Selector::Make();
    RING_KERAS_RETURN_IF_ERROR(selector.status());
    acceptors.push_back(std::make_unique<HandshakeAcceptor>(
        options, std::move(listener), std::move(selector.value()), admit));
  }
  StatusOr<WakeUp> wake_up = WakeUp::Make();
  RING_KERAS_RETURN_IF_ERROR(wake_up.status());
  return std::unique_ptr<AcceptorThread>(new AcceptorThread(
      std::move(acceptors), std::move(take), std::move(wake_up.value())));
}

AcceptorThread::AcceptorThread(Acceptors acceptors, Take take, WakeUp wake_up)
    : acceptors_(std::move(acceptors)),
      take_(std::move(take)),
      wake_up_(std::move(wake_up)),
      thread_([this] { Run(); }) {}

AcceptorThread::~AcceptorThread() {
  stop_ = true;
  wake_up_.Notify();
  thread_.join();
}

void AcceptorThread::Run() {
  while (!stop_) {
    std::vector<pollfd> entries = {{wake_up_.get(), POLLIN, 0}};
    int timeout_ms = -1;  // No limit.
    for (const auto& acceptor : acceptors_) {
      entries.push_back({acceptor->descriptor(), POLLIN, 0});
      const int own_ms = acceptor->PollTimeoutMs();
      if (own_ms >= 0 && (timeout_ms < 0 || own_ms < timeout_ms)) {
        timeout_ms = own_ms;
      }
    }
    poll(entries.data(), entries.size(), timeout_ms);
    for (const auto& acceptor : acceptors_) {
      for (TrustedConnection& connection : acceptor->Serve()) {
        take_(std::move(connection));
      }
    }
  }
}

}  // namespace ring_keras
