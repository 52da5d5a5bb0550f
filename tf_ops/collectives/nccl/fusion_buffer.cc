#include "tf_ops/collectives/nccl/fusion_buffer.h"

#include "tf_ops/common/logging.h"

namespace ring_keras::nccl {

StatusOr<std::unique_ptr<FusionBuffer>> FusionBuffer::Create(
    const Api& api, CommHandle comm, StreamHandle stream) {
  const cuda::RuntimeApi& runtime = *cuda::GetRuntime().value();
  void* data = nullptr;
  const bool has_allocator = api.MemAlloc != nullptr && api.MemFree != nullptr;
  const bool is_nccls =
      has_allocator && api.MemAlloc(&data, kFusionBufferBytes) == kSuccess;
  if (!is_nccls) {
    RING_KERAS_RETURN_IF_ERROR(cuda::ToStatus(
        runtime.Malloc(&data, kFusionBufferBytes),
        "allocating a fusion buffer beside the framework's pool of memory"));
  }
  std::unique_ptr<FusionBuffer> buffer(
      new FusionBuffer(api, static_cast<char*>(data), is_nccls));
  RING_KERAS_RETURN_IF_ERROR(
      cuda::ToStatus(runtime.MemsetAsync(data, 0, kFusionBufferBytes, stream),
                     "clearing a fusion buffer"));
  if (api.CommRegister != nullptr && api.CommDeregister != nullptr &&
      api.CommRegister(comm, data, kFusionBufferBytes,
                       &buffer->registration_) != kSuccess) {
    buffer->registration_ = nullptr;
    Log(LogLevel::kDebug, StrCat("NCCL does not register the fusion buffer: ",
                                 api.GetLastError(comm)));
  }
  return buffer;
}

FusionBuffer::~FusionBuffer() {
  if (is_nccls_) {
    api_.MemFree(data_);
  } else {
    cuda::GetRuntime().value()->Free(data_);
  }
}

void FusionBuffer::Deregister(CommHandle comm) {
  if (registration_ != nullptr) api_.CommDeregister(comm, registration_);
  registration_ = nullptr;
}

}  // namespace ring_keras::nccl
