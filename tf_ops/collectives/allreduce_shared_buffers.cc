#include <algorithm>
#include <cstring>
#include <utility>

#include "tf_ops/collectives/algorithms.h"
#include "tf_ops/collectives/partition.h"
#include "tf_ops/collectives/reduction.h"
#include "tf_ops/collectives/shared_collective.h"

namespace ring_keras {
namespace {

// Reduced by one rank, then copied to the others while in its L1.
constexpr size_t kBlockBytes = 8 << 10;

class AllreduceSharedBuffers : public Collective {
 public:
  AllreduceSharedBuffers(const CollectiveArguments& arguments,
                         Communicator& communicator, uint64_t key,
                         const SharedBuffers& buffers, MakeAlgorithm* staged)
      : arguments_(arguments),
        communicator_(communicator),
        key_(key),
        buffers_(buffers),
        make_staged_(staged),
        reduction_(arguments) {}

  std::optional<size_t> slot_nbytes() const override {
    return SharedCollective::SlotBytes(buffers_.nbytes, communicator_.size());
  }
  bool can_repeat() const override { return true; }
  void Describe(Participant* own) const override {
    own->input_offset = buffers_.input_offset;
    own->output_offset = buffers_.output_offset;
  }
  void Prepare(const WindowUse& window) override { window_ = window; }
  uint64_t rounds() const override {
    return staged_ == nullptr ? 1 : staged_->rounds();
  }

  Task Run(const Participants& participants) override {
    const auto has_buffers = [this](const Participant& peer) {
      return IsWithinBuffers(peer.input_offset, buffers_.nbytes) &&
             IsWithinBuffers(peer.output_offset, buffers_.nbytes);
    };
    const bool all_have_buffers =
        std::all_of(participants.begin(), participants.end(), has_buffers);
    // Weights that differ need a pass over the inputs, which are not ours.
    if (reduction_.Begin(participants) || !all_have_buffers) {
      staged_ = make_staged_(arguments_, communicator_, key_);
      staged_->Prepare(window_);
      communicator_.NotifyAll();
      Task staged = staged_->Run(participants);
      co_return co_await staged;
    }
    ReducePart(participants);
    const uint64_t after = window_.first_round + 1;
    window_.window->packed.store(after, std::memory_order_relaxed);
    window_.window->unpacked.store(after, std::memory_order_relaxed);
    window_.window->reduced.store(after, std::memory_order_release);
    communicator_.NotifyAll();
    const Participants* peers = &participants;
    co_await communicator_.Until(
        [peers, after] {
          for (const Participant& peer : *peers) {
            if (peer.window->reduced.load(std::memory_order_acquire) < after) {
              return false;
            }
          }
          return true;
        },
        Scheduler::Look::kAlways);
    co_return communicator_.status();
  }

 private:
  // Nobody else touches this rank's part of any buffer.
  void ReducePart(const Participants& participants) {
    const int size = communicator_.size();
    const int rank = communicator_.rank();
    const char* inputs[kSharedMaxRanks];  // As this process sees them.
    char* outputs[kSharedMaxRanks];
    for (int peer = 0; peer < size; ++peer) {
      char* buffers = communicator_.segment(peer).buffers();
      inputs[peer] = buffers + participants[peer].input_offset;
      outputs[peer] = buffers + participants[peer].output_offset;
    }
    const Range lines =
        Part(CeilDivide(buffers_.nbytes, kCacheLine), size, rank);
    const size_t end = std::min(buffers_.nbytes, lines.end * kCacheLine);
    const void* sources[kSharedMaxRanks];
    for (size_t at = lines.begin * kCacheLine; at < end; at += kBlockBytes) {
      const size_t nbytes = std::min(kBlockBytes, end - at);
      for (int peer = 0; peer < size; ++peer) sources[peer] = inputs[peer] + at;
      reduction_.Combine(outputs[rank] + at, sources, size, nbytes);
      for (int peer = 0; peer < size; ++peer) {
        if (peer == rank) continue;
        std::memcpy(outputs[peer] + at, outputs[rank] + at, nbytes);
      }
    }
  }

  const CollectiveArguments& arguments_;
  Communicator& communicator_;
  uint64_t key_;
  const SharedBuffers buffers_;
  MakeAlgorithm* make_staged_;
  Reduction reduction_;
  WindowUse window_;
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
  if (own.Find(arguments.inputs[0].data, buffers.nbytes,
               &buffers.input_offset) &&
      own.Find(arguments.outputs[0], buffers.nbytes, &buffers.output_offset)) {
    return buffers;
  }
  return std::nullopt;
}

std::unique_ptr<Collective> MakeAllreduceSharedBuffers(
    const CollectiveArguments& arguments, Communicator& communicator,
    uint64_t key, const SharedBuffers& buffers, MakeAlgorithm* staged) {
  return std::make_unique<AllreduceSharedBuffers>(arguments, communicator, key,
                                                  buffers, staged);
}

}  // namespace ring_keras
