#include "tf_ops/collectives/communicator.h"

#include <algorithm>

namespace ring_keras {

Communicator::Communicator(int id, std::vector<int> ranks, const Tuning& tuning,
                           Mesh& mesh, Scheduler& scheduler)
    : id_(id),
      ranks_(std::move(ranks)),
      rank_(PlaceOf(mesh.rank())),
      shares_memory_(std::all_of(ranks_.begin(), ranks_.end(),
                                 [&](int rank) {
                                   return rank == mesh.rank() ||
                                          mesh.SharesMemoryWith(rank);
                                 })),
      tuning_(tuning),
      mesh_(mesh),
      scheduler_(scheduler) {}

bool Communicator::Contains(int job_rank) const {
  return std::binary_search(ranks_.begin(), ranks_.end(), job_rank);
}

int Communicator::PlaceOf(int job_rank) const {
  return static_cast<int>(
      std::lower_bound(ranks_.begin(), ranks_.end(), job_rank) -
      ranks_.begin());
}

void Communicator::NotifyAll() {
  for (int rank : ranks_) {
    if (rank != mesh_.rank()) mesh_.Notify(rank);
  }
}

}  // namespace ring_keras
