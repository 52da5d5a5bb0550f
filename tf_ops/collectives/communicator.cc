#include "tf_ops/collectives/communicator.h"

#include <algorithm>

namespace ring_keras {

Communicator::Communicator(int id, std::vector<int> ranks, Mesh& mesh,
                           Scheduler& scheduler)
    : id_(id),
      ranks_(std::move(ranks)),
      rank_(static_cast<int>(
          std::find(ranks_.begin(), ranks_.end(), mesh.rank()) -
          ranks_.begin())),
      shares_memory_(std::all_of(ranks_.begin(), ranks_.end(),
                                 [&](int rank) {
                                   return rank == mesh.rank() ||
                                          mesh.SharesMemoryWith(rank);
                                 })),
      mesh_(mesh),
      scheduler_(scheduler) {}

void Communicator::NotifyAll() {
  for (int rank : ranks_) {
    if (rank != mesh_.rank()) mesh_.Notify(rank);
  }
}

}  // namespace ring_keras
