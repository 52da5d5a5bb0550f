// Every collective there is for tensors in GPU memory; algorithms.cc picks.
#ifndef RING_KERAS_COLLECTIVES_NCCL_ALGORITHMS_H_
#define RING_KERAS_COLLECTIVES_NCCL_ALGORITHMS_H_

#include <memory>

#include "tf_ops/collectives/collective.h"

namespace ring_keras::nccl {

// Whether NCCL can do this. InvalidArgument: names what it cannot.
Status Validate(const CollectiveArguments& arguments);

// The algorithm for arguments with device_work, which are valid.
std::unique_ptr<Collective> MakeCollective(const CollectiveArguments& arguments,
                                           Communicator& communicator);

using MakeAlgorithm = std::unique_ptr<Collective>(
    const CollectiveArguments& arguments, Communicator& communicator);

// For a communicator of one rank: copies and scales, without NCCL.
MakeAlgorithm MakeAlone;
// Small tensors through the fusion buffer, large ones where they are.
MakeAlgorithm MakeAllreduce;
// Half as long on the way; each element is summed up in float32 by the rank
// that it falls to, and rounded once.
MakeAlgorithm MakeAllreduceNarrow;
// These move bytes, of whatever type.
MakeAlgorithm MakeBroadcast;
MakeAlgorithm MakeAllgather;
MakeAlgorithm MakeAlltoall;
MakeAlgorithm MakeReduceScatter;
// Makes the communicator of a process set.
MakeAlgorithm MakeSplit;

}  // namespace ring_keras::nccl

#endif  // RING_KERAS_COLLECTIVES_NCCL_ALGORITHMS_H_
