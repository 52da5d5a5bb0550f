// The form in which the elements of an allreduce travel: as they are, or of a
// narrower type.
#ifndef RING_KERAS_COLLECTIVES_WIRE_FORMAT_H_
#define RING_KERAS_COLLECTIVES_WIRE_FORMAT_H_

#include "tf_ops/collectives/arguments.h"
#include "tf_ops/collectives/reduction.h"

namespace ring_keras {

// Sizes are in bytes of the tensors, and whole elements.
class WireFormat {
 public:
  explicit WireFormat(const CollectiveArguments& arguments)
      : own_(arguments),
        on_the_wire_(OnTheWire(arguments)),
        dtype_(arguments.wire_dtype.value_or(arguments.dtype)),
        ratio_(SizeOf(arguments.dtype) / SizeOf(dtype_)) {}

  // As Reduction::Begin.
  void Begin(const Participants& participants) {
    own_.Begin(participants);
    on_the_wire_.Begin(participants);
  }

  bool converts() const { return ratio_ != 1; }
  // Bytes of a tensor per byte that travels.
  size_t ratio() const { return ratio_; }
  // What combines data on the wire. It also multiplies what is complete, unless
  // that is done on the way back, before anything is rounded.
  const Reduction& on_the_wire() const { return on_the_wire_; }

  // Multiplies as before a reduction; `to` may be `from` if nothing converts.
  void ToWire(char* to, const char* from, size_t nbytes) const {
    if (converts()) {
      Narrow(dtype_, to, from, own_.prescale(), nbytes / own_.element_nbytes());
    } else {
      own_.CopyIn(to, from, nbytes);
    }
  }
  void FromWire(char* to, const char* from, size_t nbytes) const {
    if (converts()) {
      Widen(dtype_, to, from, own_.postscale(), nbytes / own_.element_nbytes());
    } else if (to != from && nbytes > 0) {
      std::memcpy(to, from, nbytes);
    }
  }

 private:
  static CollectiveArguments OnTheWire(const CollectiveArguments& arguments) {
    CollectiveArguments wire;
    wire.dtype = arguments.wire_dtype.value_or(arguments.dtype);
    wire.reduce_op = arguments.reduce_op;
    if (wire.dtype == arguments.dtype) {
      wire.postscale = arguments.postscale;
    } else if (wire.reduce_op == ReduceOp::kAverage) {
      wire.reduce_op = ReduceOp::kSum;
    }
    return wire;
  }

  Reduction own_;
  Reduction on_the_wire_;
  DataType dtype_;
  size_t ratio_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_COLLECTIVES_WIRE_FORMAT_H_
