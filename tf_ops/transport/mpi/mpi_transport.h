// MPI between hosts.
#ifndef RING_KERAS_TRANSPORT_MPI_MPI_TRANSPORT_H_
#define RING_KERAS_TRANSPORT_MPI_MPI_TRANSPORT_H_

#include <memory>
#include <string>
#include <vector>

#include "tf_ops/transport/mpi/process.h"
#include "tf_ops/transport/transport.h"

namespace ring_keras {

class MpiTransport : public Transport {
 public:
  // Begins MPI, if nobody has. Internal: it cannot be used, or its processes
  // are not this job's `size` ranks.
  static StatusOr<std::unique_ptr<MpiTransport>> Make(int rank, int size,
                                                      uint64_t generation);

  std::string name() const override { return "mpi"; }
  StatusOr<std::vector<NewLink>> Connect(const std::vector<int>& peers,
                                         Store& store,
                                         Deadline deadline) override;
  // Each stream asks MPI for its own messages, which has MPI get on with all.
  void Collect() override {}
  // MPI has none.
  int descriptor() const override { return -1; }
  // Each is a rendezvous, or several copies.
  size_t message_nbytes() const override { return size_t{1} << 20; }
  void Lose(int peer) override;

 private:
  MpiTransport(mpi::Process& process, int tag) : process_(process), tag_(tag) {}

  mpi::Process& process_;
  const int tag_;  // Of this membership.
};

}  // namespace ring_keras

#endif  // RING_KERAS_TRANSPORT_MPI_MPI_TRANSPORT_H_
