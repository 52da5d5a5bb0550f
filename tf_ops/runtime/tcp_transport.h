// TCP between hosts, with TLS over it if the job encrypts.
#ifndef RING_KERAS_RUNTIME_TCP_TRANSPORT_H_
#define RING_KERAS_RUNTIME_TCP_TRANSPORT_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tf_ops/runtime/tcp_link_options.h"
#include "tf_ops/transport/tcp/poller.h"
#include "tf_ops/transport/transport.h"

namespace ring_keras {

class TcpTransport : public Transport {
 public:
  // Finds the addresses on which this rank is to listen; all ranks at once.
  using FindAddresses =
      std::function<StatusOr<std::vector<std::string>>(Store&, Deadline)>;

  TcpTransport(TcpLinkOptions options, FindAddresses find_addresses)
      : options_(std::move(options)),
        find_addresses_(std::move(find_addresses)) {}

  std::string name() const override { return "tcp"; }
  StatusOr<std::vector<NewLink>> Connect(const std::vector<int>& peers,
                                         Store& store,
                                         Deadline deadline) override;
  StatusOr<std::unique_ptr<LinkSource>> ConnectLater(
      const std::vector<int>& peers, const std::vector<int>& first,
      std::function<void()> on_new, Store& store, Deadline deadline) override;
  void Collect() override { poller_->Collect(); }
  int descriptor() const override { return poller_->descriptor(); }

 private:
  Status Prepare(Store& store, Deadline deadline);

  TcpLinkOptions options_;
  const FindAddresses find_addresses_;
  std::unique_ptr<Poller> poller_;  // Set by Prepare().
};

}  // namespace ring_keras

#endif  // RING_KERAS_RUNTIME_TCP_TRANSPORT_H_
