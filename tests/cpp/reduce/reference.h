// What the kernels must compute, one element at a time and written another way:
// 16-bit floats are converted by ldexp and nearbyint instead of bits.
#ifndef RING_KERAS_TESTS_REDUCE_REFERENCE_H_
#define RING_KERAS_TESTS_REDUCE_REFERENCE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tf_ops/common/data_type.h"
#include "tf_ops/common/reduce_op.h"
#include "tf_ops/reduce/kernel_table.h"

namespace ring_keras::testing {

using Bytes = std::vector<unsigned char>;

// The tables that this processor runs, "scalar" first.
std::vector<const reduce::KernelTable*> RunnableTables();

std::vector<DataType> AllDataTypes();
std::vector<ReduceOp> AllReduceOps();

// Elements of random bits, among them NaN, infinities, zeros of both signs,
// denormals and numbers of similar size; 0 and 1 for bool. The same for the
// same seed.
Bytes RandomElements(DataType dtype, size_t count, uint32_t seed);

// `sources` combined from left to right.
Bytes ReferenceReduce(DataType dtype, ReduceOp op,
                      const std::vector<const void*>& sources, size_t count);

Bytes ReferenceScale(DataType dtype, const Bytes& in, double factor);

// Where `got` first differs from `expected`, with both elements; empty if it
// does not.
std::string FirstDifference(DataType dtype, const Bytes& expected,
                            const void* got);

// Memory for `nbytes` at an address that is `misalignment` past a multiple of
// 64, followed by bytes that must not change.
class Buffer {
 public:
  Buffer(size_t nbytes, size_t misalignment);
  Buffer(const Bytes& content, size_t misalignment);

  unsigned char* data() { return data_; }
  bool IsEndIntact() const;

 private:
  std::vector<unsigned char> storage_;
  unsigned char* data_;
  size_t nbytes_;
};

}  // namespace ring_keras::testing

#endif  // RING_KERAS_TESTS_REDUCE_REFERENCE_H_
