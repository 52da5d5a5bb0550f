#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "tf_ops/collectives/algorithms.h"
#include "tf_ops/collectives/in_place.h"
#include "tf_ops/collectives/shared_collective.h"
#include "tf_ops/collectives/shared_tensors.h"
#include "tf_ops/collectives/withdrawal.h"
#include "tf_ops/reduce/streaming.h"

namespace ring_keras {
namespace {

// As BroadcastShared has it, which goes on with this window if it must.
size_t SlotOfRoots(const CollectiveArguments& arguments,
                   const Communicator& communicator) {
  std::vector<size_t> sent(communicator.size());
  for (size_t i = 0; i < arguments.inputs.size(); ++i) {
    sent[RootOf(arguments, i)] += BytesOf(arguments, i);
  }
  return SharedCollective::SlotBytes(
      *std::max_element(sent.begin(), sent.end()), communicator.size());
}

// Each rank copies what is large from where its root has it. Ranks only read
// each other's memory; whoever gives up says so, and what was read after that
// does not count.
class BroadcastSharedTensors final : public SharedTensors {
 public:
  BroadcastSharedTensors(const CollectiveArguments& arguments,
                         Communicator& communicator, TensorPlaces places,
                         MakeAlgorithm* staged)
      : SharedTensors(arguments, communicator, std::move(places), staged,
                      SlotOfRoots(arguments, communicator)),
        outlasts_caches_(
            OutlastsCaches(TotalBytes(arguments), communicator.size())) {}

  ~BroadcastSharedTensors() override {
    if (failed_while_shown()) Withdraw(*window_.window);
  }

 protected:
  bool Begin(const Participants&) override { return true; }

  bool MoveSome() override {
    size_t budget = kInPlaceSomeBytes;
    for (; at_tensor_ < seen().size(); ++at_tensor_, done_ = 0) {
      const Seen& tensor = seen()[at_tensor_];
      const char* from = tensor.inputs[RootOf(arguments_, tensor.index)];
      auto* to = static_cast<char*>(arguments_.outputs[tensor.index]);
      if (from == to) continue;
      // In whole lines, as what streams begins where one does.
      const size_t count =
          std::min(tensor.nbytes - done_, budget / kCacheLine * kCacheLine);
      Copy(to + done_, from + done_, count);
      done_ += count;
      budget -= count;
      if (done_ < tensor.nbytes) return true;
    }
    return false;
  }

 private:
  void Copy(char* to, const char* from, size_t nbytes) const {
    if (outlasts_caches_ && CanStream(to)) {
      StreamingCopy(to, from, nbytes);
    } else {
      std::memcpy(to, from, nbytes);
    }
  }

  const bool outlasts_caches_;
  // Where this rank is.
  size_t at_tensor_ = 0;
  size_t done_ = 0;
};

}  // namespace

std::optional<TensorPlaces> FindSentPlaces(const CollectiveArguments& arguments,
                                           const Communicator& communicator) {
  if (!ReachesArenas(communicator)) return std::nullopt;
  const Mesh& mesh = communicator.mesh();
  const TensorArena& own = *mesh.tensors(mesh.rank());
  TensorPlaces places;
  for (size_t i = 0; i < arguments.inputs.size(); ++i) {
    if (!IsShown(arguments, i)) continue;
    TensorPlace& place = places.emplace_back();
    // Nobody looks at what another one sends.
    if (RootOf(arguments, i) != communicator.rank()) continue;
    const size_t nbytes = BytesOf(arguments, i);
    const auto input = own.OffsetOf(arguments.inputs[i].data, nbytes);
    if (!input) return std::nullopt;
    place = {*input, *input};
  }
  if (places.empty() ||
      !HasRoom(places, SlotOfRoots(arguments, communicator))) {
    return std::nullopt;
  }
  return places;
}

std::unique_ptr<Collective> MakeBroadcastSharedTensors(
    const CollectiveArguments& arguments, Communicator& communicator,
    TensorPlaces places, MakeAlgorithm* staged) {
  return std::make_unique<BroadcastSharedTensors>(arguments, communicator,
                                                  std::move(places), staged);
}

}  // namespace ring_keras
