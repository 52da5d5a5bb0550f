#include "tf_ops/runtime/tcp_transport.h"

#include "tf_ops/runtime/tcp_links.h"

namespace ring_keras {

Status TcpTransport::Prepare(Store& store, Deadline deadline) {
  auto addresses = find_addresses_(store, deadline);
  RING_KERAS_RETURN_IF_ERROR(addresses.status());
  options_.bind_addresses = std::move(addresses.value());
  auto poller = Poller::Create();
  RING_KERAS_RETURN_IF_ERROR(poller.status());
  poller_ = std::move(poller.value());
  return Status::Ok();
}

StatusOr<std::vector<NewLink>> TcpTransport::Connect(
    const std::vector<int>& peers, Store& store, Deadline deadline) {
  RING_KERAS_RETURN_IF_ERROR(Prepare(store, deadline));
  return ConnectAll(options_, peers, *poller_, store, deadline);
}

StatusOr<std::unique_ptr<LinkSource>> TcpTransport::ConnectLater(
    const std::vector<int>& peers, const std::vector<int>& first,
    std::function<void()> on_new, Store& store, Deadline deadline) {
  RING_KERAS_RETURN_IF_ERROR(Prepare(store, deadline));
  auto links = TcpLinks::Start(options_, peers, *poller_, std::move(on_new),
                               store, deadline);
  RING_KERAS_RETURN_IF_ERROR(links.status());
  RING_KERAS_RETURN_IF_ERROR(links.value()->Await(first, store, deadline));
  return std::unique_ptr<LinkSource>(std::move(links.value()));
}

}  // namespace ring_keras
