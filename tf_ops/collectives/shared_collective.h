// A collective of ranks that share memory, as a pipeline of rounds.
//
// In each round a rank packs a slot of its window, reduces (if the algorithm
// has that stage) once every rank has packed, and unpacks once every rank has
// reduced. Windows have several slots, so packing runs ahead of the peers.
// Ranks synchronise by counters in the windows alone; nothing is sent.
//
// Why that is safe. Rounds of a window are numbered through all its uses; round
// k lies in slot k mod S, S = WindowSlots. Each counter has one writer and only
// grows, so what a rank has waited for stays true.
// 1. Nothing is overwritten that is still to be read: rank r packs round k once
//    unpacked >= k - S + 1 everywhere, so all have read round k - S.
// 2. Nothing is read that is not complete: round k is read once packed > k,
//    stored with release after the data and loaded with acquire.
// 3. Reducing in place is as good: of r's slot, the others read r's part after
//    reduced > k at r only, and every other part is left as it was packed.
// 4. No rank waits for ever: let m be the least `unpacked`. Everyone can pack
//    round m by 1, so everyone can reduce it, so its last can unpack it.
// 5. Uses follow each other without a pause: the next one's `first_round` is
//    this one's plus rounds(), which follows from what all ranks agree on.
// 6. Rounds packed before weights were known are void: every rank sees it,
//    reads none of them, and counts them as unpacked, which keeps 1.
#ifndef RING_KERAS_COLLECTIVES_SHARED_COLLECTIVE_H_
#define RING_KERAS_COLLECTIVES_SHARED_COLLECTIVE_H_

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "tf_ops/collectives/collective.h"
#include "tf_ops/collectives/streaming_choice.h"

namespace ring_keras {

class SharedCollective : public Collective {
 public:
  std::optional<size_t> slot_nbytes() const final;
  void Prepare(const WindowUse& window) final;
  Task Run(const Participants& participants) final;
  void Renew() override;
  bool RunAtOnce(const Participants& participants) final;
  uint64_t rounds() const final { return void_rounds_ + rounds_; }

  // The slot that `nbytes` of data need, in whole cache lines: all of them, up
  // to a round's worth.
  static constexpr size_t SlotBytes(size_t nbytes, int ranks) {
    return (std::min(nbytes, RoundBytes(ranks)) + kCacheLine - 1) / kCacheLine *
           kCacheLine;
  }

 protected:
  SharedCollective(const CollectiveArguments& arguments,
                   Communicator& communicator)
      : arguments_(arguments),
        communicator_(communicator),
        round_nbytes_(RoundBytes(communicator.size())) {}

  // Known before any peer is there: rounds in which this rank packs, and the
  // bytes that the largest of them needs.
  virtual size_t pack_rounds() const = 0;
  virtual size_t max_pack_nbytes() const = 0;
  virtual void Pack(size_t round, char* slot, ShowingCopy& copy) = 0;

  // What Begin finds out.
  struct Rounds {
    size_t count = 0;        // That all ranks do together.
    bool pack_anew = false;  // What any rank packed before is void.
  };
  // Every rank is there. May allocate the output.
  virtual StatusOr<Rounds> Begin(const Participants& participants) = 0;
  virtual bool has_reduce() const { return false; }
  virtual void Reduce(size_t round) { (void)round; }
  virtual void Unpack(size_t round) = 0;

  // The slot of `rank` in `round`, from Begin on.
  char* slot(int rank, size_t round) const {
    return SlotOf((*participants_)[rank].window, round);
  }

  const CollectiveArguments& arguments_;
  Communicator& communicator_;
  // What a rank packs in a round, at most.
  const size_t round_nbytes_;

 private:
  // What a rank has packed is still in its L2 when the other reads it. More
  // ranks wait for more of each other, and may share cores: fewer rounds are
  // worth a trip to L3.
  static constexpr size_t RoundBytes(int ranks) {
    return size_t{ranks == 2 ? 128u : 512u} << 10;
  }
  using Counter = std::atomic<uint64_t> Window::*;
  char* SlotOf(Window* window, size_t round) const {
    return window->data() +
           ((first_round_ + round) & (slots_ - 1)) * slot_stride_;
  }
  bool AllDid(Counter stage, int64_t count) const;
  bool CanPack() const;
  bool CanReduce() const;
  bool CanUnpack() const;
  void PackNext();
  void SayPacked();
  void PackAnew();

  Window* own_ = nullptr;
  const Participants* participants_ = nullptr;  // From Run on.
  size_t slot_nbytes_ = 0;  // Room for what this rank packs.
  size_t slot_stride_ = round_nbytes_;
  size_t slots_ = 0;
  uint64_t first_round_ = 0;  // The counters' value before this use.
  size_t void_rounds_ = 0;
  size_t packed_ = 0;
  size_t reduced_ = 0;
  size_t unpacked_ = 0;
  size_t rounds_ = 0;
};

}  // namespace ring_keras

#endif  // RING_KERAS_COLLECTIVES_SHARED_COLLECTIVE_H_
