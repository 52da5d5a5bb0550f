#include "tf_ops/collectives/nccl/nccl_api.h"

#include "tf_ops/cuda/library_paths.h"
#include "tf_ops/cuda/version.h"

namespace ring_keras::nccl {
namespace {

// NCCL counts 2.18.1 as 21801, since 2.9.
constexpr cuda::Version NcclVersion(int number) {
  return {number / 10000, number % 10000 / 100, number % 100};
}

StatusOr<const Api*> Load() {
  StatusOr<void*> handle = cuda::OpenLibrary(cuda::kNcclLibrary);
  if (!handle.ok()) return handle.status();
  static Api api;
  // The version first: of an older library it says more than a missing name.
  cuda::Symbols version_symbols(cuda::kNcclLibrary, handle.value());
  version_symbols.Find("ncclGetVersion", &api.GetVersion);
  version_symbols.Find("ncclGetErrorString", &api.GetErrorString);
  RING_KERAS_RETURN_IF_ERROR(version_symbols.status());
  int version = 0;
  if (const int result = api.GetVersion(&version); result != kSuccess) {
    return Status(StatusCode::kInternal, StrCat("asking NCCL for its version: ",
                                                api.GetErrorString(result)));
  }
  RING_KERAS_RETURN_IF_ERROR(cuda::CheckVersion(
      cuda::kNcclLibrary, NcclVersion(version), cuda::Version{2, 18}));
  cuda::Symbols symbols(cuda::kNcclLibrary, handle.value());
  symbols.Find("ncclGetUniqueId", &api.GetUniqueId);
  symbols.Find("ncclCommInitRankConfig", &api.CommInitRankConfig);
  symbols.Find("ncclCommSplit", &api.CommSplit);
  symbols.Find("ncclCommGetAsyncError", &api.CommGetAsyncError);
  symbols.Find("ncclCommAbort", &api.CommAbort);
  symbols.Find("ncclCommFinalize", &api.CommFinalize);
  symbols.Find("ncclCommDestroy", &api.CommDestroy);
  symbols.Find("ncclAllReduce", &api.AllReduce);
  symbols.Find("ncclBroadcast", &api.Broadcast);
  symbols.Find("ncclAllGather", &api.AllGather);
  symbols.Find("ncclReduceScatter", &api.ReduceScatter);
  symbols.Find("ncclSend", &api.Send);
  symbols.Find("ncclRecv", &api.Recv);
  symbols.Find("ncclGroupStart", &api.GroupStart);
  symbols.Find("ncclGroupEnd", &api.GroupEnd);
  symbols.Find("ncclRedOpCreatePreMulSum", &api.RedOpCreatePreMulSum);
  symbols.Find("ncclRedOpDestroy", &api.RedOpDestroy);
  symbols.Find("ncclGetLastError", &api.GetLastError);
  RING_KERAS_RETURN_IF_ERROR(symbols.status());
  // What they are for works without them.
  cuda::Symbols newer(cuda::kNcclLibrary, handle.value());
  newer.Find("ncclMemAlloc", &api.MemAlloc);
  newer.Find("ncclMemFree", &api.MemFree);
  newer.Find("ncclCommRegister", &api.CommRegister);
  newer.Find("ncclCommDeregister", &api.CommDeregister);
  return &api;
}

}  // namespace

StatusOr<const Api*> GetApi() {
  static const StatusOr<const Api*> api = Load();
  return api;
}

Status ToStatus(int result, const char* what, CommHandle comm) {
  if (result == kSuccess) return Status::Ok();
  const Api& api = *GetApi().value();
  const char* details = api.GetLastError(comm);
  const bool of_a_peer = result == kRemoteError || result == kSystemError ||
                         result == kInternalError;
  return Status(of_a_peer ? StatusCode::kPeerLost : StatusCode::kInternal,
                ErrorCode::kNcclFailed,
                StrCat("NCCL, ", what, ": ", api.GetErrorString(result),
                       details != nullptr && *details != '\0' ? "; " : "",
                       details != nullptr ? details : "",
                       ". NCCL_DEBUG=WARN makes it say more."));
}

std::optional<int> NumberOf(DataType dtype) {
  switch (dtype) {
    case DataType::kUint8:
      return kUint8;
    case DataType::kInt8:
      return kInt8;
    case DataType::kInt32:
      return kInt32;
    case DataType::kInt64:
      return kInt64;
    case DataType::kFloat16:
      return kFloat16;
    case DataType::kBfloat16:
      return kBfloat16;
    case DataType::kFloat32:
      return kFloat32;
    case DataType::kFloat64:
      return kFloat64;
    case DataType::kUint16:
    case DataType::kInt16:
    case DataType::kBool:
      break;
  }
  return std::nullopt;
}

int NumberOf(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage:
      return kSum;
    case ReduceOp::kMin:
      return kMin;
    case ReduceOp::kMax:
      return kMax;
    case ReduceOp::kProduct:
      break;
  }
  return kProduct;
}

}  // namespace ring_keras::nccl
