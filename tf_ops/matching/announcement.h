// What a rank tells its peers when it enters a collective.
#ifndef RING_KERAS_MATCHING_ANNOUNCEMENT_H_
#define RING_KERAS_MATCHING_ANNOUNCEMENT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tf_ops/collectives/arguments.h"
#include "tf_ops/collectives/launch_order.h"
#include "tf_ops/matching/signature.h"
#include "tf_ops/transport/shm/window.h"

namespace ring_keras {

// Where a rank's tensors are.
enum class Memory : uint8_t { kHost = 0, kDevice = 1 };

struct Announcement {
  UseId use;

  // Must be equal on every rank (of the shapes, see FindMismatch).
  CollectiveKind kind = CollectiveKind::kBarrier;
  DataType dtype = DataType::kUint8;
  Memory memory = Memory::kHost;
  ReduceOp reduce_op = ReduceOp::kSum;
  int32_t root = 0;
  std::vector<int64_t> roots;
  double postscale = 1.0;
  std::optional<DataType> wire_dtype;
  std::vector<Shape> shapes;
  int64_t plan = 0;  // See Request.

  // This rank's own; see Participant, and for `even_rows` CollectiveArguments.
  bool even_rows = false;
  std::vector<int64_t> splits;
  double weight = 1.0;
  uint64_t window_offset = kNoWindow;
  uint64_t input_offset = WindowPost::kNowhere;
  uint64_t output_offset = WindowPost::kNowhere;
  std::string payload;  // See Collective::Payload.
  // Joins on the communicator that its rank had behind it.
  uint32_t joins = 0;
  // kJoin: the step that its rank entered last, or gave up.
  uint64_t last_step = 0;
  // Its rank is in a join: made up, it brings nothing.
  bool is_made_up = false;
  // The first rank's: see DataKeyOf.
  uint64_t number = 0;
  // On devices: the time that this rank proposes, see LaunchOrder.
  uint64_t launch_time = LaunchOrder::kNoTime;
  // Not empty: why this rank cannot take part, so that its peers do not wait.
  std::string error;

  static constexpr uint64_t kNoWindow = ~uint64_t{0};
};

// With the arguments, but without memory of this rank's that peers may read.
Announcement MakeAnnouncement(const CollectiveArguments& arguments, UseId use);

std::string Encode(const Announcement& announcement);
// InvalidArgument when `bytes` is not an announcement.
StatusOr<Announcement> DecodeAnnouncement(const std::string& bytes);

// "allreduce 'name'", for messages.
std::string Describe(CollectiveKind kind, const std::string& name);

}  // namespace ring_keras

#endif  // RING_KERAS_MATCHING_ANNOUNCEMENT_H_
