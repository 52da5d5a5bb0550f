// The tensors of an allreduce as one run of bytes in the form in which they
// travel.
#ifndef RING_KERAS_COLLECTIVES_WIRE_TENSORS_H_
#define RING_KERAS_COLLECTIVES_WIRE_TENSORS_H_

#include "tf_ops/collectives/fused_tensors.h"
#include "tf_ops/collectives/partition.h"
#include "tf_ops/collectives/wire_format.h"

namespace ring_keras {

// Ranges are in bytes of the form, and whole elements.
class WireTensors {
 public:
  explicit WireTensors(const CollectiveArguments& arguments)
      : tensors_(arguments),
        format_(arguments),
        in_place_(arguments.outputs.size() == 1 && !format_.converts()
                      ? static_cast<char*>(arguments.outputs[0])
                      : nullptr) {}

  // As ScaledReduction::Begin.
  void Begin(const Participants& participants) { format_.Begin(participants); }

  size_t nbytes() const { return tensors_.nbytes() / format_.ratio(); }
  const ScaledReduction& reduction() const { return format_.on_the_wire(); }

  // Whether they travel from the output, and into it: the same on all ranks.
  bool is_in_place() const { return in_place_ != nullptr; }
  // The place in the output of bytes that travel as they are; null if there is
  // none for all of them together.
  char* InPlace(Range range) const {
    return in_place_ != nullptr ? in_place_ + range.begin : nullptr;
  }

  // Makes the form of a range; `to` may be InPlace(range).
  void Pack(Range range, char* to) const {
    const size_t ratio = format_.ratio();
    tensors_.ForEach(
        range.begin * ratio, range.end * ratio,
        [&](const char* input, char*, size_t offset, size_t nbytes) {
          format_.ToWire(to + offset / ratio, input, nbytes);
        });
  }
  // Puts what has been reduced into the outputs.
  void Unpack(Range range, const char* from) const {
    const size_t ratio = format_.ratio();
    tensors_.ForEach(
        range.begin * ratio, range.end * ratio,
        [&](const char*, char* output, size_t offset, size_t nbytes) {
          format_.FromWire(output, from + offset / ratio, nbytes);
        });
  }

 private:
  FusedTensors tensors_;
  WireFormat format_;
  char* in_place_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_COLLECTIVES_WIRE_TENSORS_H_
