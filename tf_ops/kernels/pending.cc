#include "tf_ops/kernels/pending.h"

#include <mutex>
#include <utility>

#include "tf_ops/common/logging.h"
#include "tf_ops/kernels/conversions.h"
#include "tf_ops/kernels/device_stream.h"
#include "tf_ops/runtime/runtime.h"

namespace ring_keras {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;

namespace {

void TellOfStaging(DataType dtype) {
  static std::once_flag once;
  std::call_once(once, [dtype] {
    Log(LogLevel::kWarning,
        StrCat(Prefix(ErrorCode::kReducedOnHost), "tensors of ", NameOf(dtype),
               " on a GPU are reduced in host memory, because NCCL has no such "
               "type; TensorFlow copies them there and back. Said once."));
  });
}

}  // namespace

Pending::Pending(int tensor_count) {
  inputs_.reserve(tensor_count);
  outputs_.reserve(tensor_count);
}

std::string Pending::Describe(const Request& request) {
  return StrCat("collective '", request.name, "'");
}

TensorView Pending::AddInput(const Tensor& input) {
  inputs_.push_back(input);
  return ViewOf(input);
}

absl::Status Pending::AddOutput(OpKernelContext* context, int input_index,
                                int output_index,
                                std::vector<void*>* pointers) {
  const bool own = output_index != kNoOutput;
  const tensorflow::AllocatorAttributes attributes =
      own ? context->output_alloc_attr(output_index)
          : context->input_alloc_attr(input_index);
  const Tensor& input = context->input(input_index);
  std::unique_ptr<Tensor> forwarded = context->forward_input(
      input_index, own ? output_index : OpKernelContext::Params::kNoReservation,
      input.dtype(), input.shape(), context->input_memory_type(input_index),
      attributes);
  Tensor output;
  if (forwarded != nullptr) {
    output = *forwarded;
  } else {
    absl::Status status = context->allocate_temp(input.dtype(), input.shape(),
                                                 &output, attributes);
    if (!status.ok()) return status;
  }
  pointers->push_back(DataOf(output));
  outputs_.push_back(std::move(output));
  return absl::OkStatus();
}

absl::Status Pending::NewOutput(OpKernelContext* context, int output_index,
                                tensorflow::DataType dtype,
                                const tensorflow::TensorShape& shape,
                                std::vector<void*>* pointers) {
  Tensor output;
  absl::Status status = context->allocate_temp(
      dtype, shape, &output, context->output_alloc_attr(output_index));
  if (!status.ok()) return status;
  pointers->push_back(DataOf(output));
  outputs_.push_back(std::move(output));
  return absl::OkStatus();
}

OutputAllocator Pending::LateOutput(OpKernelContext* context) {
  tensorflow::Allocator* allocator =
      context->get_allocator(context->output_alloc_attr(0));
  const tensorflow::DataType dtype = context->input_dtype(0);
  auto self = shared_from_this();
  return [self, allocator, dtype](const Shape& shape) -> StatusOr<void*> {
    tensorflow::TensorShape output_shape;
    absl::Status status =
        tensorflow::TensorShape::BuildTensorShape(shape, &output_shape);
    if (!status.ok()) {
      return Status(StatusCode::kInvalidArgument,
                    self->what_ + ": " + std::string(status.message()));
    }
    Tensor output(allocator, dtype, output_shape);
    if (!output.IsInitialized()) {
      return Status(StatusCode::kResourceExhausted,
                    StrCat(self->what_, ": no memory for the result of shape ",
                           DebugString(shape)));
    }
    self->outputs_.push_back(output);
    return DataOf(output);
  };
}

std::vector<int64_t>* Pending::ReceivedSplits() {
  wants_received_splits_ = true;
  return &received_splits_;
}

void Pending::BeginWait() {
  Ticks nobody = 0;
  if (!awaited_since_.compare_exchange_strong(nobody, Now())) return;
  std::lock_guard<std::mutex> lock(mutex_);
  wait_activity_.Begin([this] { return StrCat("wait for ", what_); });
}

void Pending::Submit(Request request, OpKernelContext* context,
                     double drive_for_s) {
  what_ = Describe(request);
  communicator_id_ = request.communicator_id;
  activity_.Begin([&] { return Activity(request); });
  const Status follows = FollowStream(&request, context);
  if (request.able.ok()) request.able = follows;
  request.awaited_since = &awaited_since_;  // `done` keeps this alive.
  const auto done = [self = shared_from_this()](const Status& status) {
    self->Finish(status);
  };
  Runtime::Get().Submit(std::move(request), done, drive_for_s);
}

Status Pending::FollowStream(Request* request, OpKernelContext* context) {
  if (request->inputs.empty()) return Status::Ok();
  const tensorflow::MemoryType memory = context->input_memory_type(0);
  const auto stream = StreamOf(context, memory);
  if (!stream.has_value()) {
    if (StreamOf(context, tensorflow::DEVICE_MEMORY).has_value()) {
      TellOfStaging(request->dtype);
    }
    return Status::Ok();
  }
  auto work = DeviceWork::After(stream->device, stream->stream);
  RING_KERAS_RETURN_IF_ERROR(work.status());
  device_work_ = std::move(work.value());
  request->device_work = device_work_;
  request->launched = [self = shared_from_this()] {
    self->Settle(Status::Ok());
  };
  return Status::Ok();
}

void Pending::Finish(const Status& status) {
  activity_.End();
  // Before others go on: memory with one holder less may be written in place.
  inputs_.clear();
  if (task_) task_();
  Settle(status);
}

}  // namespace ring_keras
