#include "tf_ops/runtime/transport_choice.h"

#include <utility>

#include "tf_ops/transport/library/library_transport.h"
#include "tf_ops/transport/mpi/mpi_transport.h"
#include "tf_ops/transport/mpi/process.h"

namespace ring_keras {
namespace {

TcpLinkOptions LinkOptions(const InitOptions& options, uint64_t generation) {
  TcpLinkOptions result;
  result.rank = options.rank;
  result.generation = generation;
  result.token = options.token;
  result.encrypts = options.encrypts;
  result.streams = options.tcp_streams;
  result.unreachable_after_s = options.heartbeat_timeout_s + kBeyondHeartbeatS;
  return result;
}

template <typename Kind>
StatusOr<std::unique_ptr<Transport>> AsTransport(
    StatusOr<std::unique_ptr<Kind>> made) {
  RING_KERAS_RETURN_IF_ERROR(made.status());
  return std::unique_ptr<Transport>(std::move(made.value()));
}

}  // namespace

Status StartMpi(const std::string& library, const std::string& folder) {
  return mpi::Process::Start(library, folder).status();
}

bool MpiIsRunning() { return mpi::Process::IsRunning(); }

StatusOr<std::unique_ptr<Transport>> MakeTransport(
    const InitOptions& options, uint64_t generation,
    TcpTransport::FindAddresses find_addresses) {
  const std::string& name = options.transport;
  if (name == "auto" || name == "tcp") {
    return std::unique_ptr<Transport>(std::make_unique<TcpTransport>(
        LinkOptions(options, generation), std::move(find_addresses)));
  }
  if (name == "mpi") {
    return AsTransport(
        MpiTransport::Make(options.rank, options.size, generation));
  }
  LibraryJob job;
  job.rank = options.rank;
  job.size = options.size;
  job.generation = generation;
  return AsTransport(LibraryTransport::Load(name, job));
}

}  // namespace ring_keras
