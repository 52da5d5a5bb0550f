#include "tf_ops/collectives/nccl/algorithms.h"

#include "tf_ops/collectives/nccl/nccl_api.h"
#include "tf_ops/collectives/nccl/stream_work.h"

namespace ring_keras::nccl {
namespace {

MakeAlgorithm* Pick(const CollectiveArguments& arguments,
                    const Communicator& communicator) {
  if (communicator.size() == 1) return MakeAlone;
  switch (arguments.kind) {
    case CollectiveKind::kAllreduce:
      // As on CPUs, nothing is rounded within a host.
      return arguments.wire_dtype.has_value() && !communicator.shares_memory()
                 ? MakeAllreduceNarrow
                 : MakeAllreduce;
    case CollectiveKind::kAllgather:
      return MakeAllgather;
    case CollectiveKind::kBroadcast:
      return MakeBroadcast;
    case CollectiveKind::kReduceScatter:
      return MakeReduceScatter;
    case CollectiveKind::kAlltoall:
      return MakeAlltoall;
    case CollectiveKind::kBarrier:
    case CollectiveKind::kJoin:
      break;
  }
  return MakeSplit;
}

}  // namespace

Status Validate(const CollectiveArguments& arguments) {
  switch (arguments.kind) {
    case CollectiveKind::kAllreduce:
    case CollectiveKind::kReduceScatter:
      if (NumberOf(arguments.dtype).has_value()) return Status::Ok();
      return Status(
          StatusCode::kInvalidArgument,
          StrCat("NCCL does not compute with ", NameOf(arguments.dtype),
                 ". Cast the tensor, to int32 for example, or put it on the "
                 "CPU."));
    case CollectiveKind::kBarrier:
      if (static_cast<StreamWork&>(*arguments.device_work).is_split()) {
        return Status::Ok();
      }
      return Status(StatusCode::kInvalidArgument,
                    "a barrier has nothing on a GPU; enter it without.");
    case CollectiveKind::kJoin:
      return Status(StatusCode::kInvalidArgument,
                    "a join has nothing on a GPU; enter it without.");
    case CollectiveKind::kAllgather:
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kAlltoall:
      break;
  }
  return Status::Ok();
}

std::unique_ptr<Collective> MakeCollective(const CollectiveArguments& arguments,
                                           Communicator& communicator) {
  return Pick(arguments, communicator)(arguments, communicator);
}

}  // namespace ring_keras::nccl
