// A collective of ranks that share memory, as a pipeline of rounds.
//
// In each round a rank packs a slot of its window, reduces (if the algorithm
// has that stage) once every rank has packed, and unpacks once every rank has
// reduced. Windows have kSlots slots, so packing runs ahead of the peers. Ranks
// synchronise by counters in the windows alone; nothing is sent.
#ifndef RING_KERAS_COLLECTIVES_SHARED_COLLECTIVE_H_
#define RING_KERAS_COLLECTIVES_SHARED_COLLECTIVE_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "tf_ops/collectives/collective.h"

namespace ring_keras {

class SharedCollective : public Collective {
 public:
  std::optional<size_t> window_nbytes() const final;
  void Prepare(Window* window) final;
  Task Run(const Participants& participants) final;

 protected:
  // Two of them, read and written by each of a few ranks, stay in L2.
  static constexpr size_t kSlotBytes = size_t{128} << 10;
  static constexpr size_t kSlots = 2;

  SharedCollective(const CollectiveArguments& arguments,
                   Communicator& communicator)
      : arguments_(arguments), communicator_(communicator) {}

  // Known before any peer is there: rounds in which this rank packs, and the
  // bytes it packs in the first, which no later round exceeds.
  virtual size_t pack_rounds() const = 0;
  virtual size_t first_pack_nbytes() const = 0;
  virtual void Pack(size_t round, char* slot) = 0;

  // Every rank is there: allocates the output, says how many rounds all ranks
  // do together.
  virtual StatusOr<size_t> Begin(const Participants& participants) = 0;
  virtual bool has_reduce() const { return false; }
  virtual void Reduce(size_t round) { (void)round; }
  virtual void Unpack(size_t round) = 0;

  // The slot of `rank` in `round`, from Begin on.
  char* slot(int rank, size_t round) const {
    return windows_[rank]->data() + (round % kSlots) * kSlotBytes;
  }

  const CollectiveArguments& arguments_;
  Communicator& communicator_;

 private:
  using Counter = std::atomic<uint64_t> Window::*;
  uint64_t Least(Counter counter) const;
  bool PackNext();
  bool ReduceNext();
  bool UnpackNext();

  Window* own_ = nullptr;
  std::vector<Window*> windows_;  // Indexed by rank; empty before Run.
  size_t packed_ = 0;
  size_t reduced_ = 0;
  size_t unpacked_ = 0;
  size_t rounds_ = 0;
};

}  // namespace ring_keras

#endif  // RING_KERAS_COLLECTIVES_SHARED_COLLECTIVE_H_
