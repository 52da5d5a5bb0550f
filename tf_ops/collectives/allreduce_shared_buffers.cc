#include <algorithm>
#include <atomic>
#include <utility>

#include "tf_ops/collectives/algorithms.h"
#include "tf_ops/collectives/in_place.h"
#include "tf_ops/collectives/partition.h"
#include "tf_ops/collectives/scaled_reduction.h"
#include "tf_ops/collectives/shared_collective.h"
#include "tf_ops/collectives/withdrawal.h"
#include "tf_ops/reduce/streaming.h"

namespace ring_keras {
namespace {

// Ranks read and write each other's memory, which their callers use for other
// things as soon as the collective has ended for them. Nobody can stop a rank
// in the middle of that: it may have been stopped itself, and go on minutes
// after the others have given it up. So whoever fails between saying where its
// buffers are and hearing that all have ended
// - says so in its window, then lets the caller have its input. Who has read it
//   looks there before it publishes a result;
// - puts private memory in place of its output. What peers still write goes to
//   pages that nobody sees.

class AllreduceSharedBuffers : public Collective {
 public:
  AllreduceSharedBuffers(const CollectiveArguments& arguments,
                         Communicator& communicator,
                         const SharedBuffers& buffers, MakeAlgorithm* staged)
      : arguments_(arguments),
        communicator_(communicator),
        buffers_(buffers),
        make_staged_(staged),
        reduction_(arguments),
        outlasts_caches_(OutlastsCaches(buffers.nbytes, communicator.size())) {}

  ~AllreduceSharedBuffers() override {
    if (peers_may_come_ && !communicator_.status().ok()) Withdraw();
  }

  std::optional<size_t> slot_nbytes() const override {
    return SharedCollective::SlotBytes(buffers_.nbytes, communicator_.size());
  }
  bool can_repeat() const override { return true; }
  void Describe(Participant* own) const override {
    own->input_offset = buffers_.input_offset;
    own->output_offset = buffers_.output_offset;
  }
  void Prepare(const WindowUse& window) override {
    window_ = window;
    peers_may_come_ = true;
  }
  uint64_t rounds() const override {
    return staged_ == nullptr ? 1 : staged_->rounds();
  }

  Task Run(const Participants& participants) override {
    if (!reduced_) {
      // Weights that differ need a pass over the inputs, which are not ours.
      if (reduction_.Begin(participants) || !AllHaveBuffers(participants)) {
        peers_may_come_ = false;  // They see the same.
        staged_ = make_staged_(arguments_, communicator_);
        staged_->Prepare(window_);
        communicator_.NotifyAll();
        Task staged = staged_->Run(participants);
        co_return co_await staged;
      }
      MapBuffers(participants);
      Scheduler::Turn turn;
      while (part_.size() > 0 && ReduceSome()) {
        if (!turn.IsOver()) continue;
        // Another thread may go on.
        StreamingFence();
        co_await communicator_.GiveWay();
        RING_KERAS_CO_RETURN_IF_ERROR(communicator_.status());
        turn = Scheduler::Turn();
      }
      StreamingFence();
    }
    if (AnyWithdrew(participants)) {
      // Its reason will be everybody's.
      co_await communicator_.Until([] { return false; });
      co_return communicator_.status();
    }
    SayReduced();
    const Participants* peers = &participants;
    co_await communicator_.Until([this, peers] { return AllReduced(*peers); },
                                 Scheduler::Look::kAlways);
    RING_KERAS_CO_RETURN_IF_ERROR(communicator_.status());
    peers_may_come_ = false;
    co_return Status::Ok();
  }

  bool can_run_at_once() const override {
    return InPlacePart(buffers_.nbytes, communicator_.size(), 0).size() <=
           kInPlaceSomeBytes;
  }
  void Renew() override {
    reduction_ = ScaledReduction(arguments_);
    window_ = {};
    reduced_ = peers_may_come_ = false;
    staged_ = nullptr;
  }
  bool RunAtOnce(const Participants& participants) override {
    if (!WeighTheSame(participants) || !AllHaveBuffers(participants)) {
      return false;
    }
    reduction_.Begin(participants);
    MapBuffers(participants);
    if (part_.size() > 0) ReduceSome();
    StreamingFence();
    reduced_ = true;
    if (AnyWithdrew(participants)) return false;
    SayReduced();
    const bool ended = communicator_.LookBriefly(
        [this, &participants] { return AllReduced(participants); });
    if (ended) peers_may_come_ = false;
    return ended;
  }

 private:
  bool AllHaveBuffers(const Participants& participants) const {
    return std::all_of(
        participants.begin(), participants.end(),
        [this](const Participant& peer) {
          return IsWithinBuffers(peer.input_offset, buffers_.nbytes) &&
                 IsWithinBuffers(peer.output_offset, buffers_.nbytes);
        });
  }

  // Of this use: to say it twice does no harm.
  void SayReduced() {
    const uint64_t after = window_.first_round + 1;
    window_.window->packed.store(after, std::memory_order_relaxed);
    window_.window->unpacked.store(after, std::memory_order_relaxed);
    window_.window->reduced.store(after, std::memory_order_release);
    communicator_.NotifyAll();
  }

  bool AllReduced(const Participants& participants) const {
    const uint64_t after = window_.first_round + 1;
    return std::all_of(
        participants.begin(), participants.end(),
        [after](const Participant& peer) {
          return peer.window->reduced.load(std::memory_order_acquire) >= after;
        });
  }

  void MapBuffers(const Participants& participants) {
    const int size = communicator_.size();
    for (int peer = 0; peer < size; ++peer) {
      char* buffers = communicator_.segment(peer).buffers();
      inputs_[peer] = buffers + participants[peer].input_offset;
      outputs_[peer] = buffers + participants[peer].output_offset;
    }
    part_ = InPlacePart(buffers_.nbytes, size, communicator_.rank());
  }

  // The next bytes of this rank's part of all buffers, which nobody else
  // touches. Whether there are more.
  bool ReduceSome() {
    const size_t end = std::min(part_.end, part_.begin + kInPlaceSomeBytes);
    ReduceInPlace(reduction_,
                  {inputs_, outputs_, communicator_.size(), outlasts_caches_},
                  communicator_.rank(), part_.begin, end);
    part_.begin = end;
    return part_.begin < part_.end;
  }

  void Withdraw() {
    ring_keras::Withdraw(*window_.window);
    communicator_.mesh().buffers().Isolate(buffers_.output_offset,
                                           buffers_.nbytes);
  }

  const CollectiveArguments& arguments_;
  Communicator& communicator_;
  const SharedBuffers buffers_;
  MakeAlgorithm* make_staged_;
  ScaledReduction reduction_;
  const bool outlasts_caches_;
  WindowUse window_;
  // Of all ranks, as this process sees them.
  const char* inputs_[kSharedMaxRanks];
  char* outputs_[kSharedMaxRanks];
  Range part_;            // That this rank still has to reduce.
  bool reduced_ = false;  // By RunAtOnce.
  // Whether a peer may be about to read and write this rank's buffers.
  bool peers_may_come_ = false;
  std::unique_ptr<Collective> staged_;  // If a rank's tensor lies elsewhere.
};

}  // namespace

std::optional<SharedBuffers> FindSharedBuffers(
    const CollectiveArguments& arguments, Communicator& communicator) {
  if (arguments.inputs.size() != 1 || arguments.prescale != 1.0) {
    return std::nullopt;
  }
  SharedBuffers buffers;
  buffers.nbytes =
      ElementCount(arguments.inputs[0].shape) * SizeOf(arguments.dtype);
  const BufferAllocator& own = communicator.mesh().buffers();
  const void* const input = arguments.inputs[0].data;
  const void* const output = arguments.outputs[0];
  if (!own.FindAlone(output, buffers.nbytes, &buffers.output_offset)) {
    return std::nullopt;
  }
  buffers.input_offset = buffers.output_offset;
  if (input != output &&
      !own.Find(input, buffers.nbytes, &buffers.input_offset)) {
    return std::nullopt;
  }
  return buffers;
}

std::unique_ptr<Collective> MakeAllreduceSharedBuffers(
    const CollectiveArguments& arguments, Communicator& communicator,
    const SharedBuffers& buffers, MakeAlgorithm* staged) {
  return std::make_unique<AllreduceSharedBuffers>(arguments, communicator,
                                                  buffers, staged);
}

}  // namespace ring_keras
