#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace ring_keras {

REGISTER_OP("RingKerasTicks")
    .Output("now: int64")
    .SetIsStateful()  // Never fold: each run is another moment.
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(R"doc(
Says what time it is by the engine's clock.

now: In ticks of that clock.
)doc");

REGISTER_OP("RingKerasNoteInput")
    .Input("since: int64")
    .Input("until: int64")
    .Input("examples: float64")
    .SetIsStateful()  // Never prune.
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Tells the engine that the program stood still for a batch.

since: What RingKerasTicks said before.
until: What RingKerasTicks said when the batch was there.
examples: In the batch; 0 if that is unknown.
)doc");

REGISTER_OP("RingKerasAwaitsFirstBatch")
    .Output("awaited: bool")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(R"doc(
Says whether the batch at hand is the first one, which is to be noted.

awaited: True from each call of await_first_batch() to the next
  RingKerasNoteFirstBatch.
)doc");

REGISTER_OP("RingKerasNoteFirstBatch")
    .Input("batch: T")
    .Attr("T: list(type)")
    .SetIsStateful()  // Never prune.
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Keeps a digest of a batch, by which ranks see that theirs are the same, if it is
the first one after a call of await_first_batch(); else does nothing.

batch: Its tensors, of which those of numbers count, and 64 KiB of each.
)doc");

}  // namespace ring_keras
