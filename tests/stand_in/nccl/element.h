// Arithmetic on NCCL's element types.
#ifndef RING_KERAS_TESTS_STAND_IN_NCCL_ELEMENT_H_
#define RING_KERAS_TESTS_STAND_IN_NCCL_ELEMENT_H_

#include <cstddef>

namespace ring_keras::stand_in {

// Bytes of one element; 0 for types that the stand-in does not have.
size_t ElementSize(int dtype);

const char* ElementName(int dtype);

// One element of any type, its bits first.
struct Scalar {
  int dtype = 0;
  alignas(8) char bits[8] = {};
};

// sum[i] = sum[i] op other[i], rounded to the type. `op` is one of the
// built-in ones; kNcclAvg adds.
void Combine(int dtype, int op, void* sum, const void* other, size_t count);

void SetOne(int dtype, void* value);

// values[i] *= factor.
void Multiply(int dtype, void* values, size_t count, const Scalar& factor);

// values[i] /= divisor; integers are cut.
void Divide(int dtype, void* values, size_t count, int divisor);

}  // namespace ring_keras::stand_in

#endif  // RING_KERAS_TESTS_STAND_IN_NCCL_ELEMENT_H_
