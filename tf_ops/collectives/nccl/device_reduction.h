// The arithmetic of one reduction on a device: what multiplies the input before
// it and the result after it, and NCCL's op between.
#ifndef RING_KERAS_COLLECTIVES_NCCL_DEVICE_REDUCTION_H_
#define RING_KERAS_COLLECTIVES_NCCL_DEVICE_REDUCTION_H_

#include "tf_ops/collectives/arguments.h"
#include "tf_ops/collectives/collective.h"
#include "tf_ops/collectives/nccl/nccl_api.h"
#include "tf_ops/collectives/scaled_reduction.h"

namespace ring_keras::nccl {

struct DeviceReduction {
  double before = 1;  // May differ between ranks.
  double after = 1;
  // What multiplies sums that travel in 16 bits, so that they stay in range;
  // the rest of the postscale is in `after`. Of a sum that NCCL makes it is in
  // `before`; else it is up to what makes the sum. 1, or a power of two, the
  // same as for tensors in host memory.
  double headroom = 1;
  int op = kSum;
  int dtype = kFloat32;
  // Whether NCCL can multiply the input itself, by a sum of its own kind. The
  // same on every rank, whatever `before` is: ranks that pick different kinds
  // may pick different algorithms.
  bool scales_in_nccl = false;

  // An average is a sum of shares: the division comes first, so that a sum of
  // 16-bit floats does not leave their range.
  DeviceReduction(const CollectiveArguments& arguments,
                  const Participants& participants)
      : before(arguments.prescale),
        after(arguments.postscale),
        op(NumberOf(arguments.reduce_op)),
        dtype(*NumberOf(arguments.dtype)) {
    if (arguments.reduce_op == ReduceOp::kSum) {
      KeepInRange(arguments, participants);
    }
    if (arguments.reduce_op != ReduceOp::kAverage) return;
    double total = 0;
    for (const Participant& participant : participants) {
      total += participant.weight;
    }
    before *= total > 0 ? arguments.weight / total : 0;
    // NCCL takes the factor in the tensor's type: too coarse in 16 bits.
    scales_in_nccl = arguments.dtype == DataType::kFloat32 ||
                     arguments.dtype == DataType::kFloat64;
  }

 private:
  void KeepInRange(const CollectiveArguments& arguments,
                   const Participants& participants) {
    const DataType wire = arguments.wire_dtype.value_or(arguments.dtype);
    headroom = ScaledReduction(wire, ReduceOp::kSum, after)
                   .Headroom(wire, static_cast<int>(participants.size()));
    after /= headroom;
    if (!arguments.wire_dtype.has_value()) before *= headroom;
  }
};

}  // namespace ring_keras::nccl

#endif  // RING_KERAS_COLLECTIVES_NCCL_DEVICE_REDUCTION_H_
