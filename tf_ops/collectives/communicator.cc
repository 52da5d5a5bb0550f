#include "tf_ops/collectives/communicator.h"

#include <algorithm>
#include <map>

#include "tf_ops/collectives/nccl/device_communicator.h"
#include "tf_ops/collectives/nccl/launcher.h"

namespace ring_keras {

Communicator::Communicator(int id, std::vector<int> ranks, const Tuning& tuning,
                           Mesh& mesh, Scheduler& scheduler)
    : id_(id),
      ranks_(std::move(ranks)),
      rank_(PlaceOf(mesh.rank())),
      tuning_(tuning),
      mesh_(mesh),
      scheduler_(scheduler) {
  std::map<int, int> place_of_host;
  for (int place = 0; place < size(); ++place) {
    const int host = place_of_host
                         .emplace(mesh.host_of(ranks_[place]),
                                  static_cast<int>(hosts_.size()))
                         .first->second;
    if (host == static_cast<int>(hosts_.size())) hosts_.emplace_back();
    hosts_[host].push_back(place);
    if (place == rank_) host_ = host;
  }
}

Communicator::~Communicator() {
  if (device_ != nullptr) device_->launcher().Close(device_);
}

bool Communicator::Contains(int job_rank) const {
  return std::binary_search(ranks_.begin(), ranks_.end(), job_rank);
}

int Communicator::PlaceOf(int job_rank) const {
  return static_cast<int>(
      std::lower_bound(ranks_.begin(), ranks_.end(), job_rank) -
      ranks_.begin());
}

void Communicator::NotifyAll() {
  for (int place : neighbours()) {
    if (place != rank_) mesh_.Notify(ranks_[place]);
  }
}

}  // namespace ring_keras
