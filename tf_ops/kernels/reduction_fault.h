// What is wrong with reductions, by the checksums that all ranks have compared.
#ifndef RING_KERAS_KERNELS_REDUCTION_FAULT_H_
#define RING_KERAS_KERNELS_REDUCTION_FAULT_H_

#include <cstdint>
#include <string>

namespace ring_keras {

// Checksums of tensors that have been reduced; both matrices are row-major, and
// equal on all ranks.
struct ReductionChecksums {
  // A row for each rank that may have taken part: its number plus 1, or 0 if it
  // did not, then the checksum of each tensor's bits as it got them.
  const double* bits = nullptr;
  int64_t ranks = 0;
  int64_t tensors = 0;
  // A column for each block of elements: which tensor it is of, what its sum
  // must be, what it is, and by how much it may be off.
  const double* sums = nullptr;
  int64_t blocks = 0;
};

// An error's text; empty if all is well. `names` has a line for each tensor.
std::string ReductionFault(const ReductionChecksums& checksums,
                           const std::string& names);

}  // namespace ring_keras

#endif  // RING_KERAS_KERNELS_REDUCTION_FAULT_H_
