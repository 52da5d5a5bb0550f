#include "tf_ops/transport/mpi/mpi_transport.h"

#include <utility>

#include "tf_ops/transport/mpi/mpi_stream.h"

namespace ring_keras {
namespace {

constexpr char kProcessesTopic[] = "mpi/processes";

}  // namespace

StatusOr<std::unique_ptr<MpiTransport>> MpiTransport::Make(
    int rank, int size, uint64_t generation) {
  auto process = mpi::Process::Start("", "");
  RING_KERAS_RETURN_IF_ERROR(process.status());
  const int process_count = process.value()->calls().size();
  if (process_count != size) {
    return Status(StatusCode::kInternal, ErrorCode::kMpiUnusable,
                  StrCat("rank ", rank, ": MPI has ", process_count,
                         " processes, and the job ", size,
                         " ranks. Start the ranks by the mpirun of this MPI (",
                         process.value()->calls().version(),
                         "), or by an srun that knows it; ringrun cannot."));
  }
  // A message of an earlier membership that nobody has taken must not be met.
  return std::unique_ptr<MpiTransport>(new MpiTransport(
      *process.value(), static_cast<int>(generation % MpiStream::kTags)));
}

StatusOr<std::vector<NewLink>> MpiTransport::Connect(
    const std::vector<int>& peers, Store& store, Deadline deadline) {
  auto processes =
      store.Gather(kProcessesTopic, StrCat(process_.calls().rank()), deadline);
  RING_KERAS_RETURN_IF_ERROR(processes.status());
  RING_KERAS_RETURN_IF_ERROR(process_.MakeCommunicator(store, deadline));
  std::vector<NewLink> links;
  for (int peer : peers) {
    NewLink link;
    link.peer = peer;
    link.streams.push_back(std::make_unique<MpiStream>(
        process_, std::stoi(processes.value()[peer]), tag_));
    links.push_back(std::move(link));
  }
  return links;
}

void MpiTransport::Lose(int peer) {
  (void)peer;
  process_.LosePeer();
}

}  // namespace ring_keras
