// A transport of streams that are there already, on sockets that a poller sees.
#ifndef RING_KERAS_TESTS_SUPPORT_POLLED_TRANSPORT_H_
#define RING_KERAS_TESTS_SUPPORT_POLLED_TRANSPORT_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tf_ops/transport/tcp/poller.h"
#include "tf_ops/transport/transport.h"

namespace ring_keras {

class PolledTransport : public Transport {
 public:
  // Null for none.
  static std::unique_ptr<Transport> Over(std::unique_ptr<Poller> poller) {
    if (poller == nullptr) return nullptr;
    return std::unique_ptr<Transport>(new PolledTransport(std::move(poller)));
  }

  std::string name() const override { return "tcp"; }
  StatusOr<std::vector<NewLink>> Connect(const std::vector<int>&, Store&,
                                         Deadline) override {
    return std::vector<NewLink>();
  }
  void Collect() override { poller_->Collect(); }
  int descriptor() const override { return poller_->descriptor(); }

 private:
  explicit PolledTransport(std::unique_ptr<Poller> poller)
      : poller_(std::move(poller)) {}

  const std::unique_ptr<Poller> poller_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_TESTS_SUPPORT_POLLED_TRANSPORT_H_
