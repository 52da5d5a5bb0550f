#include "tf_ops/rendezvous/tcp_store_server.h"

#include <mutex>
#include <thread>
#include <utility>

#include "tf_ops/common/descriptors.h"
#include "tf_ops/common/socket.h"
#include "tf_ops/rendezvous/handshake.h"
#include "tf_ops/rendezvous/store_protocol.h"
#include "tf_ops/rendezvous/store_server_loop.h"
#include "tf_ops/tls/tls_session.h"

namespace ring_keras {

struct TcpStoreServer::Impl {
  Impl(int job_size, int listening_port,
       std::unique_ptr<rendezvous::StoreServerLoop> server_loop)
      : size(job_size),
        port(listening_port),
        loop(std::move(server_loop)),
        thread([this] { loop->Run(); }) {}

  const int size;
  const int port;
  std::mutex mutex;
  std::unique_ptr<rendezvous::StoreServerLoop> loop;  // Null: closed.
  std::vector<RankEvent> last_ended;  // Once closed: what the loop knew.
  std::thread thread;
  OwnerProcess owner;
};

StatusOr<std::unique_ptr<TcpStoreServer>> TcpStoreServer::Start(
    const TcpStoreServerOptions& options) {
  RING_KERAS_RETURN_IF_ERROR(CheckToken(options.token));
  if (options.size < 1) {
    return Status(
        StatusCode::kInvalidArgument,
        StrCat("a job must have at least 1 rank, came ", options.size));
  }
  if (options.port < 0 || options.port > 65535) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("a port must be 0 to 65535, came ", options.port));
  }
  if (options.encrypts) {
    RING_KERAS_RETURN_IF_ERROR(tls::CheckAvailable());
  }
  const size_t descriptors =
      static_cast<size_t>(options.size) + kSpareUnauthenticatedConnections;
  RING_KERAS_RETURN_IF_ERROR(AllowDescriptors(
      descriptors, descriptors,
      StrCat("the store of a job of ", options.size, " ranks")));
  StatusOr<FileDescriptor> listener =
      Listen(options.bind_address, options.port);
  RING_KERAS_RETURN_IF_ERROR(listener.status());
  const int port = LocalPort(listener.value().get());
  auto loop =
      rendezvous::StoreServerLoop::Make(options, std::move(listener.value()));
  RING_KERAS_RETURN_IF_ERROR(loop.status());
  return std::unique_ptr<TcpStoreServer>(new TcpStoreServer(
      std::make_unique<Impl>(options.size, port, std::move(loop.value()))));
}

TcpStoreServer::TcpStoreServer(std::unique_ptr<Impl> impl)
    : impl_(std::move(impl)) {}

TcpStoreServer::~TcpStoreServer() {
  if (impl_->owner.IsThis()) {
    Close();
  } else {
    // A forked child has neither the thread, nor a mutex that is free for sure.
    impl_.release();
  }
}

int TcpStoreServer::port() const { return impl_->port; }

void TcpStoreServer::Close() {
  if (!impl_->owner.IsThis()) return;
  std::lock_guard<std::mutex> lock(impl_->mutex);
  if (impl_->loop == nullptr) return;
  impl_->loop->Stop();
  impl_->thread.join();
  impl_->last_ended = impl_->loop->ended_ranks();
  impl_->loop.reset();  // Closes every connection.
}

std::vector<RankEvent> TcpStoreServer::ended_ranks() const {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  return impl_->loop ? impl_->loop->ended_ranks() : impl_->last_ended;
}

int TcpStoreServer::connected_ranks() const {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  return impl_->loop ? impl_->loop->connected_ranks() : 0;
}

Status TcpStoreServer::ReportExit(int rank, const std::string& how) {
  if (rank < 0 || rank >= impl_->size) {
    return Status(
        StatusCode::kInvalidArgument,
        StrCat("rank ", rank, " is not one of the job's ", impl_->size));
  }
  std::lock_guard<std::mutex> lock(impl_->mutex);
  if (impl_->loop) impl_->loop->ReportExit(rank, rendezvous::Cut(how));
  return Status::Ok();
}

}  // namespace ring_keras
