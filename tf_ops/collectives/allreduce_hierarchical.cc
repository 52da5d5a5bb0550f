#include <algorithm>
#include <atomic>
#include <memory>
#include <new>
#include <optional>
#include <vector>

#include "tf_ops/collectives/algorithms.h"
#include "tf_ops/collectives/fused_tensors.h"
#include "tf_ops/collectives/lane.h"
#include "tf_ops/collectives/partition.h"
#include "tf_ops/collectives/pattern_choice.h"
#include "tf_ops/collectives/task_group.h"
#include "tf_ops/collectives/wire_format.h"

namespace ring_keras {
namespace {

// What windows hold has been multiplied before.
CollectiveArguments AcrossHosts(CollectiveArguments arguments,
                                double postscale) {
  arguments.prescale = 1.0;
  arguments.postscale = postscale;
  return arguments;
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

// The data go by in rounds, several at a time. In each, the ranks of a host
// show their data in their windows; a few of them, as many as every host has,
// reduce a part each, first of this host's windows, then across hosts with the
// ranks in the same place there; all copy the parts out.
class AllreduceHierarchical : public Collective {
 public:
  AllreduceHierarchical(const CollectiveArguments& arguments,
                        Communicator& communicator)
      : arguments_(arguments),
        communicator_(communicator),
        tensors_(arguments),
        reduction_(arguments),
        within_host_(arguments.dtype, arguments.reduce_op, 1.0),
        local_rank_(PlaceOf(communicator.local_ranks(), communicator.rank())),
        lane_count_(LaneCount(communicator)) {
    const size_t hosts = communicator.hosts().size();
    round_nbytes_ = std::clamp(kMessageBytes * hosts * lane_count_,
                               kMinRoundBytes, kMaxRoundBytes);
    rounds_ = CeilDivide(tensors_.nbytes(), round_nbytes_);
  }

  std::optional<size_t> slot_nbytes() const override {
    if (is_alone_on_host()) return std::nullopt;
    // Windows have two slots or more; what nobody writes takes no memory.
    return CeilDivide(window_nbytes(), 2);
  }

  bool can_repeat() const override { return true; }

  void Prepare(const WindowUse& use) override { own_ = use.window; }

  // Where its window is, for the ranks of its host.
  std::string Payload() override {
    uint64_t offset = WindowPost::kNowhere;
    if (!is_alone_on_host()) {
      offset = communicator_.mesh().windows().OffsetOf(own_);
    }
    return EncodeWindowOffset(offset);
  }

  Task Run(const Participants& participants) override {
    Begin(participants);
    PrivateWindow alone;
    if (is_alone_on_host()) own_ = alone.Allocate(window_nbytes());
    for (int rank : communicator_.local_ranks()) {
      windows_.push_back(
          rank == communicator_.rank() ? own_ : participants[rank].window);
    }
    TaskGroup under_way(communicator_);
    for (size_t round = 0; round < rounds_; ++round) {
      // Its slot must have been read by all.
      co_await communicator_.Until([this, round] {
        return round < kSlots ||
               Least(&Window::unpacked, windows_.size()) > round - kSlots;
      });
      if (!communicator_.status().ok()) break;
      Pack(round);
      under_way.Spawn([&] { return RunRound(round); });
    }
    co_await under_way.AllEnded();
    co_return communicator_.status();
  }

 private:
  using Counter = std::atomic<uint64_t> Window::*;

  static constexpr size_t kMessageBytes = size_t{128} << 10;
  static constexpr size_t kMinRoundBytes = size_t{256} << 10;
  static constexpr size_t kMaxRoundBytes = size_t{16} << 20;
  // Rounds of which a window holds the data.
  static constexpr size_t kSlots = 8;
  // Lanes of a host share its link: each is taken for one of so many when its
  // pattern is picked.
  static constexpr size_t kLanesOfAHost = 4;

  // Such a rank shows its data to nobody, and may have no shared memory.
  bool is_alone_on_host() const {
    return communicator_.local_ranks().size() == 1;
  }
  size_t window_nbytes() const {
    return std::min(tensors_.nbytes(), kSlots * round_nbytes_);
  }
  // Whether this rank reduces a part.
  bool has_lane() const { return local_rank_ < lane_count_; }

  static int PlaceOf(const std::vector<int>& ranks, int rank) {
    return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) -
                            ranks.begin());
  }
  static int LaneCount(const Communicator& communicator) {
    size_t least = communicator.hosts()[0].size();
    for (const auto& host : communicator.hosts()) {
      least = std::min(least, host.size());
    }
    return static_cast<int>(least);
  }

  // The lowest value of a counter among the first `count` windows.
  uint64_t Least(Counter counter, size_t count) const {
    uint64_t least = ~uint64_t{0};
    for (size_t i = 0; i < count; ++i) {
      least = std::min(least,
                       (windows_[i]->*counter).load(std::memory_order_acquire));
    }
    return least;
  }
  void Publish(Counter counter, uint64_t value) {
    (own_->*counter).store(value, std::memory_order_release);
    communicator_.NotifyAll();
  }

  Range RoundBytes(size_t round) const {
    return Piece({0, tensors_.nbytes()}, round_nbytes_, round);
  }
  // The bytes of a slot that the lane reduces.
  Range PartOf(size_t round, int lane) const {
    return ElementPart(RoundBytes(round).size(), reduction_.element_nbytes(),
                       lane_count_, lane);
  }
  char* slot(size_t place, size_t round) const {
    return windows_[place]->data() + (round % kSlots) * round_nbytes_;
  }

  void Pack(size_t round) {
    const Range range = RoundBytes(round);
    char* to = own_->data() + (round % kSlots) * round_nbytes_;
    tensors_.ForEach(
        range.begin, range.end,
        [&](const char* input, char*, size_t offset, size_t nbytes) {
          reduction_.CopyIn(to + offset, input, nbytes);
        });
    Publish(&Window::packed, round + 1);
  }

  Task RunRound(size_t round) {
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

  void Begin(const Participants& participants) {
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
                       format_->on_the_wire()});
    for (const std::vector<int>& host : communicator_.hosts()) {
      lane_->members.push_back(host[local_rank_]);
    }
  }

  // This rank's part of the round, in its own window: nobody else reads that
  // before it is reduced.
  Task ReducePart(size_t round) {
    const Range part = PartOf(round, local_rank_);
    std::vector<const void*> sources;
    for (size_t place = 0; place < windows_.size(); ++place) {
      sources.push_back(slot(place, round) + part.begin);
    }
    char* part_data = slot(local_rank_, round) + part.begin;
    within_host_.Combine(part_data, sources.data(),
                         static_cast<int>(sources.size()), part.size());
    char* data = part_data;
    std::unique_ptr<char[]> narrow;
    const size_t wire_nbytes = part.size() / format_->ratio();
    if (format_->converts()) {
      narrow.reset(new char[wire_nbytes]);
      data = narrow.get();
      format_->ToWire(data, part_data, part.size());
    }
    LanePattern* pattern =
        PickPattern(communicator_.tuning(), format_->dtype(), lane_->size(),
                    kLanesOfAHost * wire_nbytes);
    Task across = pattern(*lane_, data, wire_nbytes,
                          static_cast<uint32_t>(round) * lane_->tag_count());
    const Status status = co_await across;
    RING_KERAS_CO_RETURN_IF_ERROR(status);
    format_->FromWire(part_data, data, part.size());
    co_return Status::Ok();
  }

  void Unpack(size_t round) {
    const Range range = RoundBytes(round);
    for (int lane = 0; lane < lane_count_; ++lane) {
      const Range part = PartOf(round, lane);
      const char* reduced = slot(lane, round) + part.begin;
      tensors_.ForEach(
          range.begin + part.begin, range.begin + part.end,
          [&](const char*, char* output, size_t offset, size_t nbytes) {
            std::memcpy(output, reduced + offset, nbytes);
          });
    }
  }

  const CollectiveArguments& arguments_;
  Communicator& communicator_;
  FusedTensors tensors_;
  ScaledReduction reduction_;
  // Of what the windows hold.
  ScaledReduction within_host_;
  const int local_rank_;  // Among the ranks of this host.
  const int lane_count_;  // Ranks of each host that reduce a part.
  size_t round_nbytes_;
  size_t rounds_;
  Window* own_ = nullptr;
  std::vector<Window*> windows_;  // Of this host's ranks.
  // From Begin on.
  std::optional<WireFormat> format_;
  std::optional<Lane> lane_;
  size_t reduced_ = 0;
  size_t unpacked_ = 0;
};

}  // namespace

std::unique_ptr<Collective> MakeAllreduceHierarchical(
    const CollectiveArguments& arguments, Communicator& communicator) {
  return std::make_unique<AllreduceHierarchical>(arguments, communicator);
}

}  // namespace ring_keras
