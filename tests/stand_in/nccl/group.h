// Calls between ncclGroupStart and ncclGroupEnd start together.
#ifndef RING_KERAS_TESTS_STAND_IN_NCCL_GROUP_H_
#define RING_KERAS_TESTS_STAND_IN_NCCL_GROUP_H_

#include <memory>

#include "tests/stand_in/nccl/collective.h"
#include "tests/stand_in/nccl/communicator.h"

namespace ring_keras::stand_in {

void StartGroup();

// A NcclResult.
int EndGroup();

// Notes a call of the calling thread's group, or starts it if there is none. A
// NcclResult.
int AddCall(std::shared_ptr<Communicator> communicator, void* stream,
            const Call& call);

}  // namespace ring_keras::stand_in

#endif  // RING_KERAS_TESTS_STAND_IN_NCCL_GROUP_H_
