#include "tf_ops/collectives/shared_tensors.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tf_ops/collectives/shared_collective.h"
#include "tf_ops/collectives/withdrawal.h"
#include "tf_ops/reduce/streaming.h"

namespace ring_keras {
namespace {

CollectiveArguments WithoutShown(const CollectiveArguments& arguments) {
  CollectiveArguments rest = arguments;
  rest.inputs.clear();
  rest.outputs.clear();
  rest.roots.clear();
  for (size_t i = 0; i < arguments.inputs.size(); ++i) {
    if (IsShown(arguments, i)) continue;
    rest.inputs.push_back(arguments.inputs[i]);
    rest.outputs.push_back(arguments.outputs[i]);
    if (!arguments.roots.empty()) rest.roots.push_back(arguments.roots[i]);
  }
  return rest;
}

}  // namespace

size_t BytesOf(const CollectiveArguments& arguments, size_t index) {
  return ElementCount(arguments.inputs[index].shape) * SizeOf(arguments.dtype);
}

bool IsShown(const CollectiveArguments& arguments, size_t index) {
  return BytesOf(arguments, index) >= kLeastSharedTensorBytes;
}

bool ReachesArenas(const Communicator& communicator) {
  const Mesh& mesh = communicator.mesh();
  return std::all_of(
      communicator.ranks().begin(), communicator.ranks().end(),
      [&mesh](int rank) { return mesh.tensors(rank) != nullptr; });
}

bool HasRoom(const TensorPlaces& places, size_t slot_nbytes) {
  return places.size() * sizeof(TensorPlace) <= slot_nbytes;
}

// One round, in which each rank shows where its large tensors lie.
class SharedTensors::PlacesRound final : public SharedCollective {
 public:
  PlacesRound(const CollectiveArguments& arguments, Communicator& communicator,
              const TensorPlaces& places, std::vector<Seen>* seen)
      : SharedCollective(arguments, communicator),
        places_(places),
        seen_(*seen) {}

  bool can_repeat() const override { return true; }

 protected:
  size_t pack_rounds() const override { return 1; }
  size_t max_pack_nbytes() const override {
    return places_.size() * sizeof(TensorPlace);
  }
  void Pack(size_t, char* slot, ShowingCopy& copy) override {
    copy(slot, places_.data(), max_pack_nbytes());
  }
  StatusOr<Rounds> Begin(const Participants&) override { return Rounds{1}; }

  void Unpack(size_t round) override {
    for (size_t i = 0; i < arguments_.inputs.size(); ++i) {
      if (!IsShown(arguments_, i)) continue;
      const size_t number = seen_.size();
      Seen& tensor = seen_.emplace_back();
      tensor.index = i;
      tensor.nbytes = BytesOf(arguments_, i);
      for (int rank = 0; rank < communicator_.size(); ++rank) {
        TensorPlace place;
        std::memcpy(&place, slot(rank, round) + number * sizeof(place),
                    sizeof(place));
        Add(rank, place, &tensor);
      }
    }
  }

 private:
  void Add(int rank, const TensorPlace& place, Seen* tensor) {
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
  std::vector<Seen>& seen_;
};

SharedTensors::SharedTensors(const CollectiveArguments& arguments,
                             Communicator& communicator, TensorPlaces places,
                             MakeAlgorithm* staged, size_t slot_nbytes)
    : arguments_(arguments),
      communicator_(communicator),
      places_(std::move(places)),
      small_(WithoutShown(arguments)),
      make_staged_(staged),
      slot_nbytes_(slot_nbytes) {}

void SharedTensors::Describe(Participant* own) const {
  own->input_offset = WindowPost::kInArena;
  own->output_offset = WindowPost::kInArena;
}

Task SharedTensors::RunStage(std::unique_ptr<Collective> stage,
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

Task SharedTensors::Run(const Participants& participants) {
  const bool all_show = std::all_of(
      participants.begin(), participants.end(), [](const Participant& peer) {
        return peer.input_offset == WindowPost::kInArena;
      });
  if (!Begin(participants) || !all_show) {
    Task staged =
        RunStage(make_staged_(arguments_, communicator_), participants);
    co_return co_await staged;
  }
  peers_may_come_ = true;
  Task places = RunStage(
      std::make_unique<PlacesRound>(arguments_, communicator_, places_, &seen_),
      participants);
  RING_KERAS_CO_RETURN_IF_ERROR(co_await places);
  if (!small_.inputs.empty()) {
    Task small = RunStage(make_staged_(small_, communicator_), participants);
    RING_KERAS_CO_RETURN_IF_ERROR(co_await small);
  }
  RING_KERAS_CO_RETURN_IF_ERROR(communicator_.status());
  Scheduler::Turn turn;
  while (MoveSome()) {
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

}  // namespace ring_keras
