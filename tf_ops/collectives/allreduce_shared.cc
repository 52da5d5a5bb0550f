#include "tf_ops/collectives/algorithms.h"
#include "tf_ops/collectives/fused_tensors.h"
#include "tf_ops/collectives/partition.h"
#include "tf_ops/collectives/scaled_reduction.h"
#include "tf_ops/collectives/shared_collective.h"
#include "tf_ops/reduce/streaming.h"

namespace ring_keras {
namespace {

// What both allreduces share: a round is a slot's worth of all tensors.
class AllreduceShared : public SharedCollective {
 public:
  AllreduceShared(const CollectiveArguments& arguments,
                  Communicator& communicator)
      : SharedCollective(arguments, communicator),
        tensors_(arguments),
        reduction_(arguments) {}

  bool can_repeat() const override { return true; }
  void Renew() override {
    SharedCollective::Renew();
    reduction_ = ScaledReduction(arguments_);
  }

 protected:
  size_t pack_rounds() const override {
    return CeilDivide(tensors_.nbytes(), round_nbytes_);
  }
  size_t max_pack_nbytes() const override { return RoundBytes(0).size(); }
  void Pack(size_t round, char* slot, ShowingCopy& copy) override {
    const Range range = RoundBytes(round);
    tensors_.ForEach(
        range.begin, range.end,
        [&](const char* input, char*, size_t offset, size_t nbytes) {
          reduction_.CopyIn(slot + offset, input, nbytes, copy);
        });
  }
  StatusOr<Rounds> Begin(const Participants& participants) override {
    const bool pack_anew = reduction_.Begin(participants);
    return Rounds{pack_rounds(), pack_anew};
  }

  Range RoundBytes(size_t round) const {
    return Piece({0, tensors_.nbytes()}, round_nbytes_, round);
  }

  // Whether `output`, where `input` is to be replaced, is written past the
  // caches.
  bool Streams(const char* input, const char* output) const {
    return input != output &&
           OutlastsCaches(tensors_.nbytes(), communicator_.size());
  }

  // out = the slots of all ranks at `offset`, combined in rank order; of this
  // rank's slot, `own` is another copy, if not null.
  void Combine(ReduceOutput out, size_t round, size_t offset, const void* own,
               size_t nbytes) const {
    const void* sources[kSharedMaxRanks];
    for (int rank = 0; rank < communicator_.size(); ++rank) {
      sources[rank] = slot(rank, round) + offset;
    }
    if (own != nullptr) sources[communicator_.rank()] = own;
    reduction_.Combine(&out, 1, sources, communicator_.size(), nbytes);
  }

  FusedTensors tensors_;
  ScaledReduction reduction_;
};

class AllreduceSharedFlat : public AllreduceShared {
 public:
  using AllreduceShared::AllreduceShared;

  bool can_run_at_once() const override { return pack_rounds() == 1; }

 protected:
  void Unpack(size_t round) override {
    const Range range = RoundBytes(round);
    tensors_.ForEach(
        range.begin, range.end,
        [&](const char* input, char* output, size_t offset, size_t nbytes) {
          // The input is still in this core's cache, and in nobody else's.
          const char* own = reduction_.prescale() == 1.0 ? input : nullptr;
          if (Streams(input, output)) {
            CombineStreaming(output, round, offset, own, nbytes);
          } else {
            Combine({output}, round, offset, own, nbytes);
          }
        });
    StreamingFence();
  }

 private:
  void CombineStreaming(char* out, size_t round, size_t offset, const char* own,
                        size_t nbytes) const {
    const size_t head =
        BytesBeforeStream(out, nbytes, reduction_.element_nbytes());
    Combine({out}, round, offset, own, head);
    if (own != nullptr) own += head;
    Combine({out + head, true}, round, offset + head, own, nbytes - head);
  }
};

class AllreduceSharedParts : public AllreduceShared {
 public:
  using AllreduceShared::AllreduceShared;

 protected:
  bool has_reduce() const override { return true; }

  // In place: nobody else reads this rank's part of this rank's slot before
  // it is reduced.
  void Reduce(size_t round) override {
    const Range part = PartOf(round, communicator_.rank());
    Combine({slot(communicator_.rank(), round) + part.begin}, round, part.begin,
            nullptr, part.size());
  }

  void Unpack(size_t round) override {
    const Range range = RoundBytes(round);
    for (int rank = 0; rank < communicator_.size(); ++rank) {
      const Range part = PartOf(round, rank);
      const char* reduced = slot(rank, round) + part.begin;
      tensors_.ForEach(
          range.begin + part.begin, range.begin + part.end,
          [&](const char* input, char* output, size_t offset, size_t nbytes) {
            if (Streams(input, output)) {
              StreamingCopy(output, reduced + offset, nbytes);
            } else {
              std::memcpy(output, reduced + offset, nbytes);
            }
          });
    }
    StreamingFence();
  }

 private:
  // The bytes of a slot that `rank` reduces, in whole cache lines.
  Range PartOf(size_t round, int rank) const {
    const size_t nbytes = RoundBytes(round).size();
    const Range lines =
        Part(CeilDivide(nbytes, kCacheLine), communicator_.size(), rank);
    return {std::min(nbytes, lines.begin * kCacheLine),
            std::min(nbytes, lines.end * kCacheLine)};
  }
};

}  // namespace

std::unique_ptr<Collective> MakeAllreduceSharedFlat(
    const CollectiveArguments& arguments, Communicator& communicator) {
  return std::make_unique<AllreduceSharedFlat>(arguments, communicator);
}

std::unique_ptr<Collective> MakeAllreduceSharedParts(
    const CollectiveArguments& arguments, Communicator& communicator) {
  return std::make_unique<AllreduceSharedParts>(arguments, communicator);
}

}  // namespace ring_keras
