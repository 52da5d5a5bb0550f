// How a reduction combines the values of the ranks.
#ifndef RING_KERAS_COMMON_REDUCE_OP_H_
#define RING_KERAS_COMMON_REDUCE_OP_H_

#include <cstdint>

namespace ring_keras {

// The numbers travel between ranks: append, never renumber.
enum class ReduceOp : uint8_t {
  kSum = 0,
  kAverage = 1,  // The sum divided by the communicator's size.
  kMin = 2,
  kMax = 3,
  kProduct = 4,
};

constexpr int kReduceOpCount = 5;

constexpr const char* NameOf(ReduceOp op) {
  constexpr const char* kNames[kReduceOpCount] = {"sum", "average", "min",
                                                  "max", "product"};
  return kNames[static_cast<int>(op)];
}

}  // namespace ring_keras

#endif  // RING_KERAS_COMMON_REDUCE_OP_H_
