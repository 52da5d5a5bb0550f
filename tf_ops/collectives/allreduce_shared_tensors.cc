#include <algorithm>
#include <cstring>
#include <utility>

#include "tf_ops/collectives/algorithms.h"
#include "tf_ops/collectives/in_place.h"
#include "tf_ops/collectives/scaled_reduction.h"
#include "tf_ops/collectives/shared_collective.h"
#include "tf_ops/collectives/withdrawal.h"
#include "tf_ops/reduce/streaming.h"

namespace ring_keras {
namespace {

// A smaller tensor costs less to stage than to show.
constexpr size_t kLeastShownBytes = size_t{32} << 10;

size_t BytesOf(const CollectiveArguments& arguments, size_t index) {
  return ElementCount(arguments.inputs[index].shape) * SizeOf(arguments.dtype);
}

// The same on every rank, whose shapes are the same.
bool IsShown(const CollectiveArguments& arguments, size_t index) {
  return BytesOf(arguments, index) >= kLeastShownBytes;
}

CollectiveArguments WithoutShown(const CollectiveArguments& arguments) {
  CollectiveArguments rest = arguments;
  rest.inputs.clear();
  rest.outputs.clear();
  for (size_t i = 0; i < arguments.inputs.size(); ++i) {
    if (IsShown(arguments, i)) continue;
    rest.inputs.push_back(arguments.inputs[i]);
    rest.outputs.push_back(arguments.outputs[i]);
  }
  return rest;
}

// One large tensor of all ranks, as this process sees it.
struct SeenTensor {
  size_t nbytes = 0;
  std::vector<const char*> inputs;  // By rank.
  std::vector<char*> outputs;
};

// One round, in which each rank shows where its large tensors lie.
class PlacesRound final : public SharedCollective {
 public:
  PlacesRound(const CollectiveArguments& arguments, Communicator& communicator,
              const TensorPlaces& places, std::vector<SeenTensor>* seen)
      : SharedCollective(arguments, communicator),
        places_(places),
        seen_(*seen) {}

  bool can_repeat() const override { return true; }

 protected:
  size_t pack_rounds() const override { return 1; }
  size_t max_pack_nbytes() const override {
    return places_.size() * sizeof(TensorPlace);
  }
  void Pack(size_t, char* slot) override {
    std::memcpy(slot, places_.data(), max_pack_nbytes());
  }
  StatusOr<Rounds> Begin(const Participants&) override { return Rounds{1}; }

  void Unpack(size_t round) override {
    for (size_t i = 0; i < arguments_.inputs.size(); ++i) {
      if (!IsShown(arguments_, i)) continue;
      const size_t index = seen_.size();
      SeenTensor& tensor = seen_.emplace_back();
      tensor.nbytes = BytesOf(arguments_, i);
      for (int rank = 0; rank < communicator_.size(); ++rank) {
        TensorPlace place;
        std::memcpy(&place, slot(rank, round) + index * sizeof(place),
                    sizeof(place));
        Add(rank, place, &tensor);
      }
    }
  }

 private:
  void Add(int rank, const TensorPlace& place, SeenTensor* tensor) {
    const int job_rank = communicator_.ranks()[rank];
    if (!TensorArena::IsWithin(place.input, tensor->nbytes) ||
        !TensorArena::IsWithin(place.output, tensor->nbytes)) {
      communicator_.Break(
          Status(StatusCode::kInternal,
                 StrCat("rank ", job_rank,
                        " says that a tensor lies outside of its memory")));
    }
    char* arena = communicator_.mesh().tensors(job_rank)->data();
    tensor->inputs.push_back(arena + place.input);
    tensor->outputs.push_back(arena + place.output);
  }

  const TensorPlaces& places_;
  std::vector<SeenTensor>& seen_;
};

// Where all ranks show their large tensors, this goes, in one use of a window,
// through the round above, the rounds of what is small, which is staged, and
// one more for what is large, which moves no data through the window.
//
// Ranks read and write each other's memory: allreduce_shared_buffers.cc says
// what follows from that if one of them fails.
class AllreduceSharedTensors final : public Collective {
 public:
  AllreduceSharedTensors(const CollectiveArguments& arguments,
                         Communicator& communicator, TensorPlaces places,
                         MakeAlgorithm* staged)
      : arguments_(arguments),
        small_(WithoutShown(arguments)),
        communicator_(communicator),
        places_(std::move(places)),
        make_staged_(staged),
        reduction_(arguments),
        outlasts_caches_(
            OutlastsCaches(TotalBytes(arguments), communicator.size())) {}

  ~AllreduceSharedTensors() override {
    if (!peers_may_come_ || communicator_.status().ok()) return;
    Withdraw(*window_.window);
    size_t shown = 0;
    for (size_t i = 0; i < arguments_.inputs.size(); ++i) {
      if (!IsShown(arguments_, i)) continue;
      communicator_.mesh()
          .tensors(communicator_.mesh().rank())
          ->Isolate(places_[shown++].output, BytesOf(arguments_, i));
    }
  }

  std::optional<size_t> slot_nbytes() const override {
    return SharedCollective::SlotBytes(TotalBytes(arguments_),
                                       communicator_.size());
  }
  bool can_repeat() const override { return true; }
  void Describe(Participant* own) const override {
    own->input_offset = WindowPost::kInArena;
    own->output_offset = WindowPost::kInArena;
  }
  void Prepare(const WindowUse& window) override { window_ = window; }
  uint64_t rounds() const override { return rounds_; }

  Task Run(const Participants& participants) override {
    const bool all_show = std::all_of(
        participants.begin(), participants.end(), [](const Participant& peer) {
          return peer.input_offset == WindowPost::kInArena;
        });
    // Weights that differ need a pass over the inputs, which are not ours.
    if (reduction_.Begin(participants) || !all_show) {
      // They see the same.
      Task staged =
          RunStage(make_staged_(arguments_, communicator_), participants);
      co_return co_await staged;
    }
    peers_may_come_ = true;
    Task places = RunStage(std::make_unique<PlacesRound>(
                               arguments_, communicator_, places_, &seen_),
                           participants);
    RING_KERAS_CO_RETURN_IF_ERROR(co_await places);
    if (!small_.inputs.empty()) {
      Task small = RunStage(make_staged_(small_, communicator_), participants);
      RING_KERAS_CO_RETURN_IF_ERROR(co_await small);
    }
    RING_KERAS_CO_RETURN_IF_ERROR(communicator_.status());
    Scheduler::Turn turn;
    while (ReduceSome()) {
      if (!turn.IsOver()) continue;
      // Another thread may go on.
      StreamingFence();
      co_await communicator_.GiveWay();
      RING_KERAS_CO_RETURN_IF_ERROR(communicator_.status());
      turn = Scheduler::Turn();
    }
    StreamingFence();
    if (AnyWithdrew(participants)) {
      // Its reason will be everybody's.
      co_await communicator_.Until([] { return false; });
      co_return communicator_.status();
    }
    const uint64_t after = window_.first_round + ++rounds_;
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
    RING_KERAS_CO_RETURN_IF_ERROR(communicator_.status());
    peers_may_come_ = false;
    co_return Status::Ok();
  }

 private:
  // A part of this use of the window.
  Task RunStage(std::unique_ptr<Collective> stage,
                const Participants& participants) {
    WindowUse use = window_;
    use.first_round += rounds_;
    use.first_slot_is_free &= rounds_ == 0;
    stage->Prepare(use);
    communicator_.NotifyAll();
    Task run = stage->Run(participants);
    const Status status = co_await run;
    rounds_ += stage->rounds();
    co_return status;
  }

  // The next bytes of this rank's parts, which nobody else touches. Whether
  // there are more.
  bool ReduceSome() {
    size_t budget = kInPlaceSomeBytes;
    while (at_tensor_ < seen_.size()) {
      const SeenTensor& tensor = seen_[at_tensor_];
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

  const CollectiveArguments& arguments_;
  const CollectiveArguments small_;
  Communicator& communicator_;
  const TensorPlaces places_;
  MakeAlgorithm* make_staged_;
  ScaledReduction reduction_;
  const bool outlasts_caches_;
  WindowUse window_;
  uint64_t rounds_ = 0;
  std::vector<SeenTensor> seen_;
  // Where this rank is.
  size_t at_tensor_ = 0;
  size_t done_of_part_ = 0;
  // Whether a peer may be about to read and write this rank's tensors.
  bool peers_may_come_ = false;
};

}  // namespace

std::optional<TensorPlaces> FindTensorPlaces(
    const CollectiveArguments& arguments, const Communicator& communicator) {
  if (arguments.prescale != 1.0) return std::nullopt;
  const Mesh& mesh = communicator.mesh();
  for (int rank : communicator.ranks()) {
    if (mesh.tensors(rank) == nullptr) return std::nullopt;
  }
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
  const size_t slot_nbytes =
      SharedCollective::SlotBytes(TotalBytes(arguments), communicator.size());
  if (places.empty() || places.size() * sizeof(TensorPlace) > slot_nbytes) {
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
