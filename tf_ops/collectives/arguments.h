// What one rank brings to a collective.
#ifndef RING_KERAS_COLLECTIVES_ARGUMENTS_H_
#define RING_KERAS_COLLECTIVES_ARGUMENTS_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "tf_ops/collectives/nccl/device_work.h"
#include "tf_ops/common/collective_kind.h"
#include "tf_ops/common/data_type.h"
#include "tf_ops/common/reduce_op.h"
#include "tf_ops/common/status.h"
#include "tf_ops/common/tensor_view.h"

namespace ring_keras {

// Gives the memory for an output whose shape is known only once every rank
// has entered it. Called at most once, from any thread.
using OutputAllocator = std::function<StatusOr<void*>(const Shape& shape)>;

struct CollectiveArguments {
  CollectiveKind kind = CollectiveKind::kBarrier;
  DataType dtype = DataType::kUint8;
  ReduceOp reduce_op = ReduceOp::kSum;  // kAllreduce, kReduceScatter.
  int root = 0;                         // kBroadcast: rank in the communicator.
  // kBroadcast: the same, by tensor; empty: `root` of all.
  std::vector<int64_t> roots;

  // kAllreduce of float32: the form in which data travel between hosts, and
  // between GPUs everywhere, half as long: float16 or bfloat16. Sums are made
  // in float32. None: as they are.
  std::optional<DataType> wire_dtype;

  // Multiply the input before, the result after the reduction.
  double prescale = 1.0;
  double postscale = 1.0;

  // kAverage: this rank's weight, 0 or more. The result is the sum of weight x
  // input over the sum of the weights, and 0 if all weights are. The ranks need
  // not know each other's.
  double weight = 1.0;

  // kAllreduce: one or more tensors of `dtype`, reduced together.
  // kBroadcast: one or more tensors; the data of their roots' are sent.
  // kReduceScatter: one; or one or more, reduced together, with `splits`.
  // kAllgather, kAlltoall: exactly one. kBarrier, kJoin: none.
  std::vector<TensorView> inputs;

  // kAllreduce, kBroadcast: as many and as large as `inputs`; may be the same
  // memory.
  std::vector<void*> outputs;

  // kAllgather, kReduceScatter, kAlltoall.
  OutputAllocator allocate_output;

  // kAllgather, kAlltoall: whether the ranks must have equally many rows,
  // because this one has decided already how large its output is.
  bool even_rows = false;

  // kAlltoall: rows of the input for each rank; empty splits evenly.
  // kReduceScatter: elements of the inputs, one behind the other, that each
  // rank gets, the same on all; empty: rows of the only input, as even as can
  // be.
  std::vector<int64_t> splits;
  // kAlltoall, may be null: rows that came from each rank.
  std::vector<int64_t>* received_splits = nullptr;

  // kJoin: collectives to which this rank has brought nothing since it joined;
  // the runtime counts them.
  int64_t made_up = 0;
  // Of these, those that have not ended.
  int64_t made_up_under_way = 0;
  // kJoin: the job's number of the rank that joined last.
  int* last_joined = nullptr;

  // Null: the tensors are in host memory. Else they, and what allocate_output
  // gives, are in the memory of device_work->device(), on every rank.
  std::shared_ptr<DeviceWork> device_work;
  // With device_work, may be null: called once, before the request's `done`,
  // when the device has been given all of the collective, so that work which
  // follows it (DeviceWork::Follow) may use the results. From any thread; must
  // not block. Never called if the collective fails before; `done` then tells.
  std::function<void()> launched;
};

// kBroadcast: has each tensor sent by one of these. Where all are the same
// rank, as who gives that one says it, so that they agree.
inline void SetRoots(const std::vector<int64_t>& roots,
                     CollectiveArguments* arguments) {
  const bool one = std::all_of(roots.begin(), roots.end(),
                               [&](int64_t root) { return root == roots[0]; });
  if (one) {
    arguments->root = static_cast<int>(roots[0]);
  } else {
    arguments->roots = roots;
  }
}
// The same, asked.
inline int RootOf(const CollectiveArguments& arguments, size_t tensor) {
  return arguments.roots.empty() ? arguments.root
                                 : static_cast<int>(arguments.roots[tensor]);
}

// Bytes of all inputs.
size_t TotalBytes(const CollectiveArguments& arguments);

// Whether a communicator of `size` ranks can do this, judged by this rank's
// arguments alone. Errors: InvalidArgument.
Status Validate(const CollectiveArguments& arguments, int size);

}  // namespace ring_keras

#endif  // RING_KERAS_COLLECTIVES_ARGUMENTS_H_
