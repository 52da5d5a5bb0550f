// An ordered set of ranks, with the connections between them.
#ifndef RING_KERAS_COLLECTIVES_COMMUNICATOR_H_
#define RING_KERAS_COLLECTIVES_COMMUNICATOR_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tf_ops/collectives/control_tree.h"
#include "tf_ops/collectives/launch_order.h"
#include "tf_ops/collectives/post_inbox.h"
#include "tf_ops/collectives/post_route.h"
#include "tf_ops/collectives/scheduler.h"
#include "tf_ops/collectives/streaming_choice.h"
#include "tf_ops/collectives/tuning.h"
#include "tf_ops/common/status.h"
#include "tf_ops/transport/mesh.h"

namespace ring_keras {

namespace nccl {
class DeviceCommunicator;
}

class Communicator {
 public:
  // `ranks` of the job, ascending; this rank must be one of them. `mesh` and
  // `scheduler` outlive this.
  Communicator(int id, std::vector<int> ranks, const Tuning& tuning, Mesh& mesh,
               Scheduler& scheduler);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int id() const { return id_; }
  // This rank's place among `ranks()`; all "rank" below mean such a place.
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  // The job's number of the rank at each place.
  const std::vector<int>& ranks() const { return ranks_; }
  bool Contains(int job_rank) const;
  // The place of a rank that it contains.
  int PlaceOf(int job_rank) const;
  // Its ranks by host, each ascending, and the hosts by their lowest rank.
  // Ranks that share memory are on one host.
  const std::vector<std::vector<int>>& hosts() const { return hosts_; }
  // The ranks of this rank's host, itself among them.
  const std::vector<int>& local_ranks() const { return hosts_[host_]; }
  // Whether it is one of these.
  bool IsLocal(int rank) const {
    return mesh_.host_of(ranks_[rank]) == mesh_.host_of(mesh_.rank());
  }
  // The place of this rank's host in hosts().
  int host() const { return host_; }
  // Whether all ranks of it are on one host.
  bool shares_memory() const { return hosts_.size() == 1; }
  // Equal on all ranks of it.
  const Tuning& tuning() const { return tuning_; }
  // Only while no collective runs on it, on any rank.
  void set_tuning(const Tuning& tuning) {
    tuning_ = tuning;
    ++tunings_;
  }
  // How often it was set: what was chosen by another may be wrong.
  uint64_t tunings() const { return tunings_; }

  Mesh& mesh() const { return mesh_; }
  SpareMemory& spare_memory() const { return mesh_.spare_memory(); }
  Pair& pair(int rank) { return mesh_.pair(ranks_[rank]); }
  // Only of this host's ranks.
  Segment& segment(int rank) {
    return rank == rank_ ? mesh_.own_segment()
                         : mesh_.peer_segment(ranks_[rank]);
  }
  // What it has on the GPUs of its ranks, and the order of all that this rank
  // launches there; set once, before its first use.
  const std::shared_ptr<nccl::DeviceCommunicator>& device() const {
    return device_;
  }
  LaunchOrder& launch_order() { return *launch_order_; }
  void set_device(std::shared_ptr<nccl::DeviceCommunicator> device,
                  LaunchOrder& order) {
    device_ = std::move(device);
    launch_order_ = &order;
  }

  // Whether every rank has, or may have, a connection to every other. If not,
  // an algorithm should use few of them.
  bool connects_all() const { return !tree_.has_value(); }
  // Sends every other rank a control frame. Each gets those of this one in the
  // order in which it sent them.
  void Tell(FrameType type, uint64_t key, const std::string& payload);
  // Sends on what has come from the rank `from` in a kRelayed frame.
  void PassOn(int from, const std::string& bytes);
  // Whether what `rank` tells comes straight from it.
  bool HearsFrom(int rank) const;

  // Posts for the channels of its names.
  PostInbox& posts() { return posts_; }
  const PostRoute& post_route() const { return *post_route_; }

  // How this rank writes what it shows the others of its host.
  StreamingChoice& packing() { return packing_; }

  // Tells every other rank of this host that counters in shared memory changed.
  void NotifyAll();

  // Awaitable: resumes when `condition()` holds, or when the communicator is
  // broken: look at status() afterwards.
  template <typename Condition>
  auto Until(Condition condition,
             Scheduler::Look look = Scheduler::Look::kNever) {
    auto either = [this, condition = std::move(condition)]() mutable {
      return !status_.ok() || condition();
    };
    return Scheduler::Until<decltype(either)>(scheduler_, std::move(either),
                                              look);
  }

  // Scheduler::Look of a coroutine's, for those that are none.
  template <typename Condition>
  bool LookBriefly(Condition condition, bool* waited = nullptr) {
    return scheduler_.LookBriefly(std::move(condition), waited);
  }

  // Awaitable: resumes when `condition()` holds, broken or not.
  template <typename Condition>
  auto UntilAlways(Condition condition) {
    return Scheduler::Until<Condition>(scheduler_, std::move(condition));
  }

  // Awaitable: gives way to all others once; look at status() afterwards.
  auto GiveWay() {
    return UntilAlways(
        [asked = false]() mutable { return std::exchange(asked, true); });
  }

  // Ok, or why nothing works on this communicator any more.
  const Status& status() const { return status_; }
  // The first reason stays.
  void Break(const Status& why) {
    if (status_.ok()) status_ = why;
  }

 private:
  int id_;
  std::vector<int> ranks_;
  int rank_;
  std::vector<std::vector<int>> hosts_;
  int host_ = 0;
  Tuning tuning_;
  uint64_t tunings_ = 0;
  Mesh& mesh_;
  Scheduler& scheduler_;
  PostInbox posts_;
  std::optional<PostRoute> post_route_;
  std::optional<ControlTree> tree_;  // Unless connects_all().
  std::shared_ptr<nccl::DeviceCommunicator> device_;
  LaunchOrder* launch_order_ = nullptr;
  StreamingChoice packing_;
  Status status_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_COLLECTIVES_COMMUNICATOR_H_
