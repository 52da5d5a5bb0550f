// Where the rows from each rank go in the output of an alltoall.
#ifndef RING_KERAS_COLLECTIVES_ALLTOALL_OUTPUT_H_
#define RING_KERAS_COLLECTIVES_ALLTOALL_OUTPUT_H_

#include <vector>

#include "tf_ops/collectives/rows.h"

namespace ring_keras {

struct AlltoallOutput {
  char* data = nullptr;
  std::vector<Range> parts;  // Bytes from each rank.
};

// Allocates the output and fills arguments.received_splits.
inline StatusOr<AlltoallOutput> AllocateAlltoallOutput(
    const CollectiveArguments& arguments, const Participants& participants,
    int own_rank) {
  const int size = static_cast<int>(participants.size());
  const size_t row_nbytes = RowBytes(arguments);
  AlltoallOutput output;
  std::vector<int64_t> received;
  int64_t rows = 0;
  for (const Participant& participant : participants) {
    received.push_back(
        SplitsOrEven(participant.splits, participant.rows, size)[own_rank]);
    const size_t begin = rows * row_nbytes;
    rows += received.back();
    output.parts.push_back({begin, rows * row_nbytes});
  }
  StatusOr<void*> data = arguments.allocate_output(WithRows(arguments, rows));
  if (!data.ok()) return data.status();
  output.data = static_cast<char*>(data.value());
  if (arguments.received_splits != nullptr) {
    *arguments.received_splits = std::move(received);
  }
  return output;
}

}  // namespace ring_keras

#endif  // RING_KERAS_COLLECTIVES_ALLTOALL_OUTPUT_H_
