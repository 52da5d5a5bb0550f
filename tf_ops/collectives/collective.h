// One rank's part in one collective, whatever the algorithm.
//
// The runtime calls, in this order: Prepare (may fill shared memory before any
// peer is there), then, once every rank has announced itself and all agree,
// Run.
#ifndef RING_KERAS_COLLECTIVES_COLLECTIVE_H_
#define RING_KERAS_COLLECTIVES_COLLECTIVE_H_

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tf_ops/collectives/arguments.h"
#include "tf_ops/collectives/communicator.h"
#include "tf_ops/collectives/task.h"
#include "tf_ops/monitoring/collective_record.h"

namespace ring_keras {

// What a rank announced that may differ between ranks.
struct Participant {
  int64_t rows = 0;             // First dimension of its input.
  std::vector<int64_t> splits;  // kAlltoall: rows for each rank.
  double weight = 1.0;          // In an average.
  // Where its tensors lie among the shared buffers of its segment, if they do;
  // or kInArena.
  uint64_t input_offset = WindowPost::kNowhere;
  uint64_t output_offset = WindowPost::kNowhere;
  // Where its data appear, if it shares memory with this rank.
  Window* window = nullptr;
  std::string_view payload;  // See Collective::Payload.
};
// Indexed by rank.
struct Participants : std::vector<Participant> {
  using std::vector<Participant>::vector;
  // Names the collective in messages: the same on every rank, and no other's.
  uint64_t key = 0;
};

// Whether each counts, and all alike.
inline bool WeighTheSame(const Participants& participants) {
  return std::all_of(participants.begin(), participants.end(),
                     [&participants](const Participant& rank) {
                       return rank.weight > 0 &&
                              rank.weight == participants[0].weight;
                     });
}

// As a payload: where a window is that its rank has for one use only.
inline std::string EncodeWindowOffset(uint64_t offset) {
  return std::string(reinterpret_cast<const char*>(&offset), sizeof(offset));
}
inline uint64_t DecodeWindowOffset(std::string_view payload) {
  uint64_t offset = WindowPost::kNowhere;
  if (payload.size() == sizeof(offset)) {
    std::memcpy(&offset, payload.data(), sizeof(offset));
  }
  return offset;
}

// How many slots of so many bytes are in a window's data: a power of two.
//
// Two let a rank pack while others read. Large ones are as many as come to a
// mebibyte: what is packed again at once lies in the caches of the cores that
// have read it, which have to hand it back line by line, and that takes longer
// than fetching it from a cache that they share. (If they share none, see
// streaming_choice.h.)
constexpr size_t WindowSlots(size_t slot_nbytes) {
  constexpr size_t kLarge = size_t{64} << 10;
  constexpr size_t kWindow = size_t{1} << 20;
  if (slot_nbytes < kLarge) return 2;
  return std::max<size_t>(2, std::bit_floor(kWindow / slot_nbytes));
}

// What all of them hold.
constexpr size_t WindowBytes(size_t slot_nbytes) {
  return WindowSlots(slot_nbytes) * slot_nbytes;
}

// What a collective may use of this rank's window.
struct WindowUse {
  Window* window = nullptr;
  size_t slot_nbytes = 0;
  uint64_t first_round = 0;  // Counters of the window begin here.
  bool first_slot_is_free = true;
};

class Collective {
 public:
  virtual ~Collective() = default;

  // Bytes that each slot of this rank's window must hold; none: the algorithm
  // needs no window.
  virtual std::optional<size_t> slot_nbytes() const { return std::nullopt; }
  // Whether the slot's size, if there is one, follows from arguments that
  // agree, so that later uses can share a channel. Of its peers Run then needs
  // to know no more than their weights, their windows and what a post has.
  virtual bool can_repeat() const { return false; }
  // Adds what the peers must know of this rank's memory.
  virtual void Describe(Participant* own) const { (void)own; }
  // Fills what fits of the window, if the algorithm needs one.
  virtual void Prepare(const WindowUse& window) { (void)window; }

  // At most kMaxPayloadBytes that go with this rank's announcement, or its post
  // in a channel, so that every rank has them when Run begins: as many of each
  // rank. After Prepare.
  static constexpr size_t kMaxPayloadBytes = size_t{64} << 10;
  virtual std::string Payload() { return {}; }

  // Exchanges the data. `participants` outlives the task. On a device it ends
  // when that has been given everything.
  virtual Task Run(const Participants& participants) = 0;
  // On a device, after Run: ends when the device has.
  virtual Task Finish() { co_return Status::Ok(); }

  // For a collective that is made again and again (runtime/repeated_call.h),
  // in a channel that keeps windows.
  //
  // Whether RunAtOnce could carry it out.
  virtual bool can_run_at_once() const { return false; }
  // Makes it what it was before Prepare.
  virtual void Renew() {}
  // In place of Run: carries it out, if nothing has to be waited for longer
  // than a moment. Whether it has ended, well; if not, Run goes on from there.
  virtual bool RunAtOnce(const Participants& participants) {
    (void)participants;
    return false;
  }

  // Rounds by which Run advanced the windows' counters.
  virtual uint64_t rounds() const { return 0; }

  // Which it is, for those who watch.
  const AlgorithmName& algorithm() const { return algorithm_; }
  void set_algorithm(const AlgorithmName& algorithm) { algorithm_ = algorithm; }

 private:
  AlgorithmName algorithm_;
};

// The algorithm for `arguments` on `communicator`, which both outlive it.
std::unique_ptr<Collective> MakeCollective(const CollectiveArguments& arguments,
                                           Communicator& communicator);

}  // namespace ring_keras

#endif  // RING_KERAS_COLLECTIVES_COLLECTIVE_H_
