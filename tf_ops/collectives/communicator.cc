#include "tf_ops/collectives/communicator.h"

#include <algorithm>

#include "tf_ops/collectives/nccl/device_communicator.h"
#include "tf_ops/collectives/nccl/launcher.h"
#include "tf_ops/transport/relayed_frame.h"

namespace ring_keras {

Communicator::Communicator(int id, std::vector<int> ranks, const Tuning& tuning,
                           Mesh& mesh, Scheduler& scheduler)
    : id_(id),
      ranks_(std::move(ranks)),
      rank_(PlaceOf(mesh.rank())),
      tuning_(tuning),
      mesh_(mesh),
      scheduler_(scheduler) {
  std::vector<int> host_numbers;
  for (int rank : ranks_) host_numbers.push_back(mesh.host_of(rank));
  hosts_ = RanksByHost(host_numbers);
  host_ = HostOf(hosts_, rank_);
  post_route_.emplace(hosts_, host_, rank_);
  size_t smallest = hosts_.front().size();
  for (const auto& host : hosts_) smallest = std::min(smallest, host.size());
  if (size() - static_cast<int>(smallest) > mesh.max_direct_peers()) {
    tree_.emplace(hosts_, host_, rank_);
    for (int place : tree_->remote()) mesh.Open(ranks_[place]);
  } else {
    for (int place = 0; place < size(); ++place) {
      if (place != rank_) mesh.Open(ranks_[place]);
    }
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

void Communicator::Tell(FrameType type, uint64_t key,
                        const std::string& payload) {
  if (tree_.has_value()) {
    const std::string relayed =
        Encode(RelayedFrame{mesh_.rank(), type, key, payload});
    for (int place : tree_->adjacent()) {
      pair(place).SendControl(FrameType::kRelayed, id_, relayed);
    }
    return;
  }
  for (int place = 0; place < size(); ++place) {
    if (place != rank_) pair(place).SendControl(type, key, payload);
  }
}

void Communicator::PassOn(int from, const std::string& bytes) {
  if (!tree_.has_value()) return;
  // With many ranks there is soon more to pass on.
  for (int place : tree_->Onward(from)) {
    pair(place).QueueControl(FrameType::kRelayed, id_, bytes);
  }
}

bool Communicator::HearsFrom(int rank) const {
  if (!tree_.has_value()) return true;
  const std::vector<int>& adjacent = tree_->adjacent();
  return std::find(adjacent.begin(), adjacent.end(), rank) != adjacent.end();
}

void Communicator::NotifyAll() {
  for (int place : local_ranks()) {
    if (place != rank_) mesh_.Notify(ranks_[place]);
  }
}

}  // namespace ring_keras
