#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "tf_ops/collectives/algorithms.h"
#include "tf_ops/collectives/hierarchical_reduction.h"
#include "tf_ops/collectives/scattered_parts.h"

namespace ring_keras {
namespace {

// A round is a slice of each rank's part. A lane reduces those of one rank of
// each host, or of several where a host has more than others: a chunk for each
// host, in which lane and rank have the same place on theirs, or the lane's is
// the remainder.
class ReduceScatterHierarchical : public HierarchicalReduction {
 public:
  ReduceScatterHierarchical(const CollectiveArguments& arguments,
                            Communicator& communicator)
      : HierarchicalReduction(arguments, communicator, /*scatters=*/true),
        parts_(arguments, communicator.size(), SliceBytes()) {
    set_round_count(parts_.round_count());
  }

 protected:
  Status Begin() override {
    StatusOr<void*> output =
        arguments_.allocate_output(ScatteredParts::OutputOf(
            arguments_, communicator_.size(), communicator_.rank()));
    RING_KERAS_RETURN_IF_ERROR(output.status());
    output_ = static_cast<char*>(output.value());
    return Status::Ok();
  }

  void Pack(size_t round, char* slot, ShowingCopy& copy) override {
    size_t at = 0;
    for (int lane = 0; lane < lane_count(); ++lane) {
      for (const std::vector<int>& host : communicator_.hosts()) {
        for (size_t i = lane; i < host.size(); i += lane_count()) {
          const Range slice = parts_.Slice(host[i], round);
          parts_.CopyIn(reduction_, slice, slot + at, copy);
          at += slice.size();
        }
      }
    }
  }

  Range LaneBytes(size_t round, int lane) const override {
    size_t begin = 0;
    for (int before = 0; before < lane; ++before) {
      begin += ChunksOf(round, before).nbytes();
    }
    return {begin, begin + ChunksOf(round, lane).nbytes()};
  }

  LaneChunks ChunksOf(size_t round, int lane) const override {
    std::vector<size_t> ends;
    size_t end = 0;
    for (const std::vector<int>& host : communicator_.hosts()) {
      for (size_t i = lane; i < host.size(); i += lane_count()) {
        end += parts_.Slice(host[i], round).size();
      }
      ends.push_back(end);
    }
    return LaneChunks(std::move(ends));
  }

  void Unpack(size_t round) override {
    const int lane = local_rank() % lane_count();
    size_t at = LaneBytes(round, lane).begin +
                ChunksOf(round, lane)(communicator_.host()).begin;
    const std::vector<int>& host = communicator_.hosts()[communicator_.host()];
    for (int i = lane; i < local_rank(); i += lane_count()) {
      at += parts_.Slice(host[i], round).size();
    }
    const int rank = communicator_.rank();
    const Range own = parts_.Slice(rank, round);
    if (own.size() == 0) return;
    std::memcpy(output_ + (own.begin - parts_.PartOf(rank).begin),
                slot(lane, round) + at, own.size());
  }

 private:
  // In whole elements of any type.
  size_t SliceBytes() const {
    return std::max(round_nbytes() / communicator_.size() / kCacheLine,
                    size_t{1}) *
           kCacheLine;
  }

  ScatteredParts parts_;
  char* output_ = nullptr;
};

}  // namespace

std::unique_ptr<Collective> MakeReduceScatterHierarchical(
    const CollectiveArguments& arguments, Communicator& communicator) {
  return std::make_unique<ReduceScatterHierarchical>(arguments, communicator);
}

}  // namespace ring_keras
