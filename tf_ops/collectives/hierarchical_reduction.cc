#include "tf_ops/collectives/hierarchical_reduction.h"

#include <memory>
#include <new>
#include <utility>

#include "tf_ops/collectives/pattern_choice.h"
#include "tf_ops/collectives/task_group.h"

namespace ring_keras {
namespace {

// What windows hold has been multiplied before.
CollectiveArguments AcrossHosts(CollectiveArguments arguments,
                                double postscale) {
  arguments.prescale = 1.0;
  arguments.postscale = postscale;
  return arguments;
}

int PlaceOf(const std::vector<int>& ranks, int rank) {
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) -
                          ranks.begin());
}

// A window in memory of this process.
class PrivateWindow {
 public:
  Window* Allocate(size_t data_nbytes) {
    memory_.reset(new (kAlignment) char[sizeof(Window) + data_nbytes]);
    auto* window = new (memory_.get()) Window;
    window->Reset();
    return window;
  }

 private:
  static constexpr std::align_val_t kAlignment{alignof(Window)};
  struct Delete {
    void operator()(char* memory) const {
      ::operator delete[](memory, kAlignment);
    }
  };
  std::unique_ptr<char[], Delete> memory_;
};

}  // namespace

HierarchicalReduction::HierarchicalReduction(
    const CollectiveArguments& arguments, Communicator& communicator,
    bool scatters)
    : arguments_(arguments),
      communicator_(communicator),
      reduction_(arguments),
      within_host_(arguments.dtype, arguments.reduce_op, 1.0),
      scatters_(scatters),
      local_rank_(PlaceOf(communicator.local_ranks(), communicator.rank())),
      lane_count_(LaneCount(communicator)),
      round_nbytes_(std::clamp(
          Transport::kMessageBytes * communicator.hosts().size() * lane_count_,
          kMinRoundBytes, kMaxRoundBytes)) {}

int HierarchicalReduction::LaneCount(const Communicator& communicator) {
  size_t least = communicator.hosts()[0].size();
  for (const auto& host : communicator.hosts()) {
    least = std::min(least, host.size());
  }
  return static_cast<int>(least);
}

std::optional<size_t> HierarchicalReduction::slot_nbytes() const {
  if (is_alone_on_host()) return std::nullopt;
  // Windows have two slots or more; what nobody writes takes no memory.
  return CeilDivide(window_nbytes(), 2);
}

std::string HierarchicalReduction::Payload() {
  uint64_t offset = WindowPost::kNowhere;
  if (!is_alone_on_host()) {
    offset = communicator_.mesh().windows().OffsetOf(own_);
  }
  return EncodeWindowOffset(offset);
}

Task HierarchicalReduction::Run(const Participants& participants) {
  BeginLane(participants);
  const Status begun = Begin();
  if (!begun.ok()) {
    communicator_.Break(begun);
    co_return begun;
  }
  PrivateWindow alone;
  if (is_alone_on_host()) own_ = alone.Allocate(window_nbytes());
  for (int rank : communicator_.local_ranks()) {
    windows_.push_back(
        rank == communicator_.rank() ? own_ : participants[rank].window);
  }
  TaskGroup under_way(communicator_);
  for (size_t round = 0; round < round_count_; ++round) {
    // Its slot must have been read by all.
    co_await communicator_.Until([this, round] {
      return round < kSlots ||
             Least(&Window::unpacked, windows_.size()) > round - kSlots;
    });
    if (!communicator_.status().ok()) break;
    {
      ShowingCopy copy(communicator_.packing(), round_nbytes_);
      Pack(round, slot(local_rank_, round), copy);
    }
    Publish(&Window::packed, round + 1);
    under_way.Spawn([&] { return RunRound(round); });
  }
  co_await under_way.AllEnded();
  co_return communicator_.status();
}

uint64_t HierarchicalReduction::Least(Counter counter, size_t count) const {
  uint64_t least = ~uint64_t{0};
  for (size_t i = 0; i < count; ++i) {
    least = std::min(least,
                     (windows_[i]->*counter).load(std::memory_order_acquire));
  }
  return least;
}

void HierarchicalReduction::Publish(Counter counter, uint64_t value) {
  (own_->*counter).store(value, std::memory_order_release);
  communicator_.NotifyAll();
}

Task HierarchicalReduction::RunRound(size_t round) {
  if (has_lane()) {
    co_await communicator_.Until([this, round] {
      return Least(&Window::packed, windows_.size()) > round;
    });
    RING_KERAS_CO_RETURN_IF_ERROR(communicator_.status());
    Task reduce = ReducePart(round);
    const Status status = co_await reduce;
    RING_KERAS_CO_RETURN_IF_ERROR(status);
    // Counters go up by one, whichever round is ready first.
    co_await communicator_.Until([this, round] { return reduced_ == round; });
    RING_KERAS_CO_RETURN_IF_ERROR(communicator_.status());
    Publish(&Window::reduced, ++reduced_);
  }
  co_await communicator_.Until([this, round] {
    return unpacked_ == round && Least(&Window::reduced, lane_count_) > round;
  });
  RING_KERAS_CO_RETURN_IF_ERROR(communicator_.status());
  Unpack(round);
  Publish(&Window::unpacked, ++unpacked_);
  co_return Status::Ok();
}

void HierarchicalReduction::BeginLane(const Participants& participants) {
  reduction_.Begin(participants);
  const double headroom = reduction_.Headroom(
      arguments_.wire_dtype.value_or(arguments_.dtype), communicator_.size());
  within_host_.set_postscale(headroom);
  format_.emplace(AcrossHosts(arguments_, reduction_.postscale() / headroom));
  if (!has_lane()) return;
  lane_.emplace(Lane{communicator_,
                     participants.key,
                     {},
                     communicator_.host(),
                     format_->on_the_wire(),
                     scatters_});
  for (const std::vector<int>& host : communicator_.hosts()) {
    lane_->members.push_back(host[local_rank_]);
  }
}

// This rank's part of the round, in its own window: nobody else reads that
// before it is reduced.
Task HierarchicalReduction::ReducePart(size_t round) {
  const Range part = LaneBytes(round, local_rank_);
  std::vector<const void*> sources;
  for (size_t place = 0; place < windows_.size(); ++place) {
    sources.push_back(slot(place, round) + part.begin);
  }
  char* part_data = slot(local_rank_, round) + part.begin;
  within_host_.Combine(part_data, sources.data(),
                       static_cast<int>(sources.size()), part.size());
  char* data = part_data;
  const size_t wire_nbytes = part.size() / format_->ratio();
  const SpareMemory::Loan narrow(communicator_.spare_memory(),
                                 format_->converts() ? wire_nbytes : 0);
  if (format_->converts()) {
    data = narrow.get();
    format_->ToWire(data, part_data, part.size());
  }
  const size_t of_all_lanes = kLanesOfAHost * wire_nbytes;
  LanePattern* pattern =
      scatters_ ? PickHalfPattern(communicator_.tuning(), format_->dtype(),
                                  lane_->size(), of_all_lanes)
                : PickPattern(communicator_.tuning(), format_->dtype(),
                              lane_->size(), of_all_lanes);
  Task across = pattern(*lane_, data, ChunksOf(round, local_rank_),
                        static_cast<uint32_t>(round) * lane_->tag_count());
  const Status status = co_await across;
  RING_KERAS_CO_RETURN_IF_ERROR(status);
  format_->FromWire(part_data, data, part.size());
  co_return Status::Ok();
}

}  // namespace ring_keras
