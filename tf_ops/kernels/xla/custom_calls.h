// What compiled computations and the handlers of their calls agree on.
//
// The kernels for XLA (kernels.cc) emit custom calls; XLA calls the
// handlers (handlers.cc) when the computation runs. Neither includes the
// other's headers: XLA's own and those of its foreign function interface
// define the same names.
#ifndef RING_KERAS_KERNELS_XLA_CUSTOM_CALLS_H_
#define RING_KERAS_KERNELS_XLA_CUSTOM_CALLS_H_

namespace ring_keras::xla_calls {

// Takes part in a collective, from beginning to end.
inline constexpr char kRun[] = "ring_keras.run";
// The two halves of an allreduce. The results of the start are the memory of
// its operands, which belongs to the engine until the wait has returned. A
// start without a wait leaves them alone.
inline constexpr char kStart[] = "ring_keras.start";
inline constexpr char kWait[] = "ring_keras.wait";

// The two halves of a collective that is under way between two runs. They share
// no memory: what departs is copied, and so is what arrives.
inline constexpr char kDepart[] = "ring_keras.depart";
inline constexpr char kArrive[] = "ring_keras.arrive";

// Hands on tensors whose checksums are right: RingKerasCheckReductions.
inline constexpr char kCheck[] = "ring_keras.check";

// Every call takes the token of the call before it as its first operand, and
// gives one as its first result: no more than a reason for XLA to keep the
// calls in the order in which they were traced, the same on every rank.
//
// In a run, a start and a departure follow those of the factors below that are
// not attributes, in this order, then the tensors; in a wait the token that its
// start gave, then the tensors; in a check the two matrices, then the tensors.
inline constexpr const char* kFactors[] = {"prescale", "postscale", "weight"};

// Further attributes, 64-bit integers where nothing else is said.
inline constexpr char kKind[] = "kind";
inline constexpr char kName[] = "name";
inline constexpr char kCommunicator[] = "communicator";
inline constexpr char kReduceOp[] = "reduce_op";
inline constexpr char kRoot[] = "root";
inline constexpr char kRoots[] = "roots";  // A list, by tensor.
// Lists, by piece of what a broadcast puts together: see ../pieces.h.
inline constexpr char kEnds[] = "ends";
inline constexpr char kWholes[] = "wholes";
inline constexpr char kApart[] = "apart";
inline constexpr char kIsBool[] = "is_bool";        // Travels as another type.
inline constexpr char kWireDtype[] = "wire_dtype";  // -1: none.
inline constexpr char kWaitFollows[] = "wait_follows";
inline constexpr char kStep[] = "step";  // A StepRole.
inline constexpr char kPlan[] = "plan";
inline constexpr char kNames[] = "names";    // Of a check's tensors.
inline constexpr char kNumber[] = "number";  // Pairs a wait with its start.
inline constexpr char kSlot[] = "slot";      // An arrival with its departure.
// In place of a factor that is an operand: any value.
inline constexpr char kOperandSuffix[] = "_is_operand";

}  // namespace ring_keras::xla_calls

#endif  // RING_KERAS_KERNELS_XLA_CUSTOM_CALLS_H_
