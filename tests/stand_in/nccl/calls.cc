// libnccl: collectives, sends and receives, and groups.
#include <memory>

#include "tests/stand_in/nccl/communicator_use.h"
#include "tests/stand_in/nccl/group.h"
#include "tests/stand_in/nccl_abi.h"

using namespace ring_keras::stand_in;

namespace {

bool Reduces(CallKind kind) {
  return kind == CallKind::kAllReduce || kind == CallKind::kReduce ||
         kind == CallKind::kReduceScatter;
}

int Submit(ncclComm* comm, void* stream, Call call) {
  CommunicatorUse use(comm, NameOf(call.kind));
  if (use.error() != kNcclSuccess) return use.error();
  if (ElementSize(call.dtype) == 0 || call.root < 0 ||
      call.root >= use->size() ||
      (call.count > 0 && call.input == nullptr && call.output == nullptr)) {
    use->SetLastError("invalid argument");
    return kNcclInvalidArgument;
  }
  if (Reduces(call.kind) && call.op > kNcclAvg) {
    const auto factor = use->FindPreMulSum(call.op);
    if (!factor || factor->dtype != call.dtype) {
      use->SetLastError("the op is unknown, or of another type");
      return kNcclInvalidArgument;
    }
    call.is_pre_mul_sum = true;
    call.factor = *factor;
  }
  if (call.count == 0 && !IsPointToPoint(call.kind)) return kNcclSuccess;
  return AddCall(use.shared(), stream, call);
}

}  // namespace

int ncclGroupStart() {
  StartGroup();
  return kNcclSuccess;
}

int ncclGroupEnd() { return EndGroup(); }

int ncclAllReduce(const void* input, void* output, size_t count, int dtype,
                  int op, ncclComm* comm, void* stream) {
  return Submit(comm, stream,
                {CallKind::kAllReduce, input, output, count, dtype, op});
}

int ncclReduce(const void* input, void* output, size_t count, int dtype, int op,
               int root, ncclComm* comm, void* stream) {
  return Submit(comm, stream,
                {CallKind::kReduce, input, output, count, dtype, op, root});
}

int ncclReduceScatter(const void* input, void* output, size_t count, int dtype,
                      int op, ncclComm* comm, void* stream) {
  return Submit(comm, stream,
                {CallKind::kReduceScatter, input, output, count, dtype, op});
}

int ncclAllGather(const void* input, void* output, size_t count, int dtype,
                  ncclComm* comm, void* stream) {
  return Submit(comm, stream,
                {CallKind::kAllGather, input, output, count, dtype});
}

int ncclBroadcast(const void* input, void* output, size_t count, int dtype,
                  int root, ncclComm* comm, void* stream) {
  return Submit(comm, stream,
                {CallKind::kBroadcast, input, output, count, dtype, 0, root});
}

int ncclSend(const void* input, size_t count, int dtype, int peer,
             ncclComm* comm, void* stream) {
  return Submit(comm, stream,
                {CallKind::kSend, input, nullptr, count, dtype, 0, peer});
}

int ncclRecv(void* output, size_t count, int dtype, int peer, ncclComm* comm,
             void* stream) {
  return Submit(comm, stream,
                {CallKind::kReceive, nullptr, output, count, dtype, 0, peer});
}
