#include <algorithm>
#include <utility>

#include "tf_ops/collectives/algorithms.h"
#include "tf_ops/collectives/in_place.h"
#include "tf_ops/collectives/scaled_reduction.h"
#include "tf_ops/collectives/shared_collective.h"
#include "tf_ops/collectives/shared_tensors.h"
#include "tf_ops/collectives/withdrawal.h"
#include "tf_ops/reduce/streaming.h"

namespace ring_keras {
namespace {

size_t SlotOfTensors(const CollectiveArguments& arguments,
                     const Communicator& communicator) {
  return SharedCollective::SlotBytes(TotalBytes(arguments),
                                     communicator.size());
}

// Each rank reduces a part of every large tensor, and writes it to all ranks'
// memory: allreduce_shared_buffers.cc says what follows from that if one of
// them fails.
class AllreduceSharedTensors final : public SharedTensors {
 public:
  AllreduceSharedTensors(const CollectiveArguments& arguments,
                         Communicator& communicator, TensorPlaces places,
                         MakeAlgorithm* staged)
      : SharedTensors(arguments, communicator, std::move(places), staged,
                      SlotOfTensors(arguments, communicator)),
        reduction_(arguments),
        outlasts_caches_(
            OutlastsCaches(TotalBytes(arguments), communicator.size())) {}

  ~AllreduceSharedTensors() override {
    if (!failed_while_shown()) return;
    Withdraw(*window_.window);
    size_t shown = 0;
    for (size_t i = 0; i < arguments_.inputs.size(); ++i) {
      if (!IsShown(arguments_, i)) continue;
      communicator_.mesh()
          .tensors(communicator_.mesh().rank())
          ->Isolate(places_[shown++].output, BytesOf(arguments_, i));
    }
  }

 protected:
  // Weights that differ need a pass over the inputs, which are not ours.
  bool Begin(const Participants& participants) override {
    return !reduction_.Begin(participants);
  }

  // Of this rank's parts, which nobody else touches.
  bool MoveSome() override {
    size_t budget = kInPlaceSomeBytes;
    while (at_tensor_ < seen().size()) {
      const Seen& tensor = seen()[at_tensor_];
      const int size = communicator_.size();
      const Range part = InPlacePart(tensor.nbytes, size, communicator_.rank());
      const size_t begin = part.begin + done_of_part_;
      // In whole lines, as what streams begins where one does.
      const size_t end =
          std::min(part.end, begin + budget / kCacheLine * kCacheLine);
      budget -= end - begin;
      ReduceInPlace(
          reduction_,
          {tensor.inputs.data(), tensor.outputs.data(), size, outlasts_caches_},
          communicator_.rank(), begin, end);
      done_of_part_ = end - part.begin;
      if (end < part.end) return true;
      done_of_part_ = 0;
      ++at_tensor_;
    }
    return false;
  }

 private:
  ScaledReduction reduction_;
  const bool outlasts_caches_;
  // Where this rank is.
  size_t at_tensor_ = 0;
  size_t done_of_part_ = 0;
};

}  // namespace

std::optional<TensorPlaces> FindTensorPlaces(
    const CollectiveArguments& arguments, const Communicator& communicator) {
  if (arguments.prescale != 1.0 || !ReachesArenas(communicator)) {
    return std::nullopt;
  }
  const Mesh& mesh = communicator.mesh();
  const TensorArena& own = *mesh.tensors(mesh.rank());
  TensorPlaces places;
  for (size_t i = 0; i < arguments.inputs.size(); ++i) {
    if (!IsShown(arguments, i)) continue;
    const size_t nbytes = BytesOf(arguments, i);
    const auto input = own.OffsetOf(arguments.inputs[i].data, nbytes);
    const auto output = own.OffsetOf(arguments.outputs[i], nbytes);
    // What peers write must be such that it can be taken away from them.
    if (!input || !output || *output % PageBytes() != 0) {
      return std::nullopt;
    }
    places.push_back({*input, *output});
  }
  if (places.empty() ||
      !HasRoom(places, SlotOfTensors(arguments, communicator))) {
    return std::nullopt;
  }
  return places;
}

std::unique_ptr<Collective> MakeAllreduceSharedTensors(
    const CollectiveArguments& arguments, Communicator& communicator,
    TensorPlaces places, MakeAlgorithm* staged) {
  return std::make_unique<AllreduceSharedTensors>(arguments, communicator,
                                                  std::move(places), staged);
}

}  // namespace ring_keras
