// A collective of ranks that reach each other's large tensors where they lie,
// in their arenas.
//
// In one use of a window it goes through a round in which each rank shows where
// its large tensors are, the rounds of what is small, which is staged, and one
// more for what is large, which moves no data through the window. If a rank has
// large tensors elsewhere, all ranks stage everything.
#ifndef RING_KERAS_COLLECTIVES_SHARED_TENSORS_H_
#define RING_KERAS_COLLECTIVES_SHARED_TENSORS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tf_ops/collectives/algorithms.h"

namespace ring_keras {

// Of one tensor.
size_t BytesOf(const CollectiveArguments& arguments, size_t index);

// Whether a tensor is large, by its shape, which is the same on every rank.
bool IsShown(const CollectiveArguments& arguments, size_t index);

// Whether this rank reaches the arenas of all.
bool ReachesArenas(const Communicator& communicator);

// Whether a window of such slots has room for places.
bool HasRoom(const TensorPlaces& places, size_t slot_nbytes);

class SharedTensors : public Collective {
 public:
  std::optional<size_t> slot_nbytes() const final { return slot_nbytes_; }
  bool can_repeat() const final { return true; }
  void Describe(Participant* own) const final;
  void Prepare(const WindowUse& window) final { window_ = window; }
  uint64_t rounds() const final { return rounds_; }
  Task Run(const Participants& participants) final;

 protected:
  // One large tensor of all ranks, as this process sees it.
  struct Seen {
    size_t index = 0;  // Among the arguments.
    size_t nbytes = 0;
    std::vector<const char*> inputs;  // By rank.
    std::vector<char*> outputs;
  };

  // Where this rank's large tensors are, and the algorithm that stages: both
  // give the window's slots the same size.
  SharedTensors(const CollectiveArguments& arguments,
                Communicator& communicator, TensorPlaces places,
                MakeAlgorithm* staged, size_t slot_nbytes);

  // Every rank is there: whether they can go on so, the same on all.
  virtual bool Begin(const Participants& participants) = 0;
  // The next bytes of what this rank does with `seen`; whether there are more.
  virtual bool MoveSome() = 0;

  const std::vector<Seen>& seen() const { return seen_; }
  // This collective has failed while a peer may be about to reach this rank's
  // tensors.
  bool failed_while_shown() const {
    return peers_may_come_ && !communicator_.status().ok();
  }

  const CollectiveArguments& arguments_;
  Communicator& communicator_;
  const TensorPlaces places_;
  WindowUse window_;

 private:
  class PlacesRound;

  // A part of this use of the window.
  Task RunStage(std::unique_ptr<Collective> stage,
                const Participants& participants);

  const CollectiveArguments small_;
  MakeAlgorithm* make_staged_;
  const size_t slot_nbytes_;
  uint64_t rounds_ = 0;
  std::vector<Seen> seen_;
  bool peers_may_come_ = false;
};

}  // namespace ring_keras

#endif  // RING_KERAS_COLLECTIVES_SHARED_TENSORS_H_
