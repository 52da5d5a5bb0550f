#include "tf_ops/kernels/device_stream.h"

#include "tensorflow/core/framework/device_base.h"
#include "xla/stream_executor/stream.h"
#include "xla/stream_executor/stream_executor.h"

namespace ring_keras {

std::optional<DeviceStream> StreamOf(tensorflow::OpKernelContext* context,
                                     tensorflow::MemoryType memory) {
  if (memory == tensorflow::HOST_MEMORY) return std::nullopt;
  tensorflow::DeviceContext* device = context->op_device_context();
  if (device == nullptr || device->stream() == nullptr) return std::nullopt;
  const stream_executor::Stream* stream = device->stream();
  return DeviceStream{stream->parent()->device_ordinal(),
                      stream->platform_specific_handle().stream};
}

}  // namespace ring_keras
