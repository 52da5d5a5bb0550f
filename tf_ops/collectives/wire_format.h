// The form in which the elements of an allreduce travel: as they are, or of a
// narrower type.
#ifndef RING_KERAS_COLLECTIVES_WIRE_FORMAT_H_
#define RING_KERAS_COLLECTIVES_WIRE_FORMAT_H_

#include "tf_ops/collectives/arguments.h"
#include "tf_ops/collectives/scaled_reduction.h"

namespace ring_keras {

// Sizes are in bytes of the tensors, and whole elements.
class WireFormat {
 public:
  explicit WireFormat(const CollectiveArguments& arguments)
      : dtype_(arguments.wire_dtype.value_or(arguments.dtype)),
        ratio_(SizeOf(arguments.dtype) / SizeOf(dtype_)),
        own_(arguments),
        on_the_wire_(dtype_, arguments.reduce_op,
                     converts() ? 1.0 : arguments.postscale) {}

  // As ScaledReduction::Begin.
  void Begin(const Participants& participants) {
    own_.Begin(participants);
    if (converts()) {
      on_the_wire_.set_postscale(
          own_.Headroom(dtype_, static_cast<int>(participants.size())));
    } else {
      on_the_wire_.Begin(participants);
    }
  }

  DataType dtype() const { return dtype_; }
  bool converts() const { return ratio_ != 1; }
  // Bytes of a tensor per byte that travels.
  size_t ratio() const { return ratio_; }
  // What combines data on the wire. It also multiplies what is complete; where
  // FromWire can do that before anything is rounded, by no more than it must
  // for the sum to be in range.
  const ScaledReduction& on_the_wire() const { return on_the_wire_; }

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
      Widen(dtype_, to, from, own_.postscale() / on_the_wire_.postscale(),
            nbytes / own_.element_nbytes());
    } else if (to != from && nbytes > 0) {
      std::memcpy(to, from, nbytes);
    }
  }

 private:
  DataType dtype_;
  size_t ratio_;
  ScaledReduction own_;
  ScaledReduction on_the_wire_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_COLLECTIVES_WIRE_FORMAT_H_
