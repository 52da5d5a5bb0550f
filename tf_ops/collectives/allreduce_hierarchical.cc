#include <cstring>
#include <memory>

#include "tf_ops/collectives/algorithms.h"
#include "tf_ops/collectives/fused_tensors.h"
#include "tf_ops/collectives/hierarchical_reduction.h"

namespace ring_keras {
namespace {

// A round is some bytes of all tensors; all ranks need all of it.
class AllreduceHierarchical : public HierarchicalReduction {
 public:
  AllreduceHierarchical(const CollectiveArguments& arguments,
                        Communicator& communicator)
      : HierarchicalReduction(arguments, communicator, /*scatters=*/false),
        tensors_(arguments),
        wire_element_nbytes_(
            SizeOf(arguments.wire_dtype.value_or(arguments.dtype))) {
    set_round_count(CeilDivide(tensors_.nbytes(), round_nbytes()));
  }

 protected:
  void Pack(size_t round, char* slot, ShowingCopy& copy) override {
    const Range range = RoundBytes(round);
    tensors_.ForEach(
        range.begin, range.end,
        [&](const char* input, char*, size_t offset, size_t nbytes) {
          reduction_.CopyIn(slot + offset, input, nbytes, copy);
        });
  }

  Range LaneBytes(size_t round, int lane) const override {
    return ElementPart(RoundBytes(round).size(), reduction_.element_nbytes(),
                       lane_count(), lane);
  }

  LaneChunks ChunksOf(size_t round, int lane) const override {
    const size_t elements =
        LaneBytes(round, lane).size() / reduction_.element_nbytes();
    return LaneChunks(elements * wire_element_nbytes_, wire_element_nbytes_,
                      static_cast<int>(communicator_.hosts().size()));
  }

  void Unpack(size_t round) override {
    const Range range = RoundBytes(round);
    for (int lane = 0; lane < lane_count(); ++lane) {
      const Range part = LaneBytes(round, lane);
      const char* reduced = slot(lane, round) + part.begin;
      tensors_.ForEach(
          range.begin + part.begin, range.begin + part.end,
          [&](const char*, char* output, size_t offset, size_t nbytes) {
            std::memcpy(output, reduced + offset, nbytes);
          });
    }
  }

 private:
  Range RoundBytes(size_t round) const {
    return Piece({0, tensors_.nbytes()}, round_nbytes(), round);
  }

  FusedTensors tensors_;
  const size_t wire_element_nbytes_;
};

}  // namespace

std::unique_ptr<Collective> MakeAllreduceHierarchical(
    const CollectiveArguments& arguments, Communicator& communicator) {
  return std::make_unique<AllreduceHierarchical>(arguments, communicator);
}

}  // namespace ring_keras
