// Reductions over several hosts with several ranks on some.
//
// The data go by in rounds, several at a time. In each, the ranks of a host
// show their data in their windows; a few of them, as many as every host has,
// reduce a part each, first of this host's windows, then across hosts with the
// ranks in the same place there; all copy out what they need. So data cross
// between hosts once per host, and several ranks drive the wire.
#ifndef RING_KERAS_COLLECTIVES_HIERARCHICAL_REDUCTION_H_
#define RING_KERAS_COLLECTIVES_HIERARCHICAL_REDUCTION_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tf_ops/collectives/collective.h"
#include "tf_ops/collectives/lane.h"
#include "tf_ops/collectives/partition.h"
#include "tf_ops/collectives/scaled_reduction.h"
#include "tf_ops/collectives/streaming_choice.h"
#include "tf_ops/collectives/wire_format.h"

namespace ring_keras {

class HierarchicalReduction : public Collective {
 public:
  std::optional<size_t> slot_nbytes() const override;
  bool can_repeat() const override { return true; }
  void Prepare(const WindowUse& use) override { own_ = use.window; }
  // Where its window is, for the ranks of its host.
  std::string Payload() override;
  Task Run(const Participants& participants) override;

 protected:
  // `scatters`: whether each host needs the result of its own chunks alone.
  HierarchicalReduction(const CollectiveArguments& arguments,
                        Communicator& communicator, bool scatters);

  // How many rounds there are; known before any peer is there. Once.
  void set_round_count(size_t count) { round_count_ = count; }
  // All peers are there.
  virtual Status Begin() { return Status::Ok(); }
  // Puts what this rank has for a round into its slot, multiplied.
  virtual void Pack(size_t round, char* slot, ShowingCopy& copy) = 0;
  // The bytes of a slot that a lane reduces.
  virtual Range LaneBytes(size_t round, int lane) const = 0;
  // Which of these are of which host.
  virtual LaneChunks ChunksOf(size_t round, int lane) const = 0;
  // Takes what this rank needs of a round out of the slots of the lanes.
  virtual void Unpack(size_t round) = 0;

  // The slot of the rank of this host that is in this place there.
  char* slot(size_t place, size_t round) const {
    return windows_[place]->data() + (round % kSlots) * round_nbytes_;
  }
  // What a slot holds, at most.
  size_t round_nbytes() const { return round_nbytes_; }
  // Ranks of each host that reduce a part: the first ones there.
  int lane_count() const { return lane_count_; }
  int local_rank() const { return local_rank_; }

  const CollectiveArguments& arguments_;
  Communicator& communicator_;
  ScaledReduction reduction_;

 private:
  using Counter = std::atomic<uint64_t> Window::*;

  static constexpr size_t kMinRoundBytes = size_t{256} << 10;
  static constexpr size_t kMaxRoundBytes = size_t{16} << 20;
  // Rounds of which a window holds the data.
  static constexpr size_t kSlots = 8;
  // Lanes of a host share its link: each is taken for one of so many when its
  // pattern is picked.
  static constexpr size_t kLanesOfAHost = 4;

  // Such a rank shows its data to nobody, and may have no shared memory.
  bool is_alone_on_host() const {
    return communicator_.local_ranks().size() == 1;
  }
  size_t window_nbytes() const {
    return round_count_ <= 1 ? TotalBytes(arguments_)
                             : std::min(round_count_, kSlots) * round_nbytes_;
  }
  // Whether this rank reduces a part.
  bool has_lane() const { return local_rank_ < lane_count_; }

  static int LaneCount(const Communicator& communicator);
  // The lowest value of a counter among the first `count` windows.
  uint64_t Least(Counter counter, size_t count) const;
  void Publish(Counter counter, uint64_t value);
  void BeginLane(const Participants& participants);
  Task RunRound(size_t round);
  Task ReducePart(size_t round);

  // Of what the windows hold.
  ScaledReduction within_host_;
  const bool scatters_;
  const int local_rank_;  // Among the ranks of this host.
  const int lane_count_;
  const size_t round_nbytes_;
  size_t round_count_ = 0;
  Window* own_ = nullptr;
  std::vector<Window*> windows_;  // Of this host's ranks.
  // From Run on.
  std::optional<WireFormat> format_;
  std::optional<Lane> lane_;
  size_t reduced_ = 0;
  size_t unpacked_ = 0;
};

}  // namespace ring_keras

#endif  // RING_KERAS_COLLECTIVES_HIERARCHICAL_REDUCTION_H_
