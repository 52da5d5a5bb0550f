// Collectives that are under way between one run of a graph and another.
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tf_ops/kernels/attributes.h"
#include "tf_ops/kernels/conversions.h"
#include "tf_ops/kernels/departures.h"
#include "tf_ops/kernels/known_shapes.h"
#include "tf_ops/kernels/reduction.h"
#include "tf_ops/runtime/departed_calls.h"

namespace ring_keras {
namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::CancellationManager;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

class DepartKernel : public OpKernel {
 public:
  explicit DepartKernel(OpKernelConstruction* construction)
      : OpKernel(construction),
        attributes_(construction),
        wire_dtype_(WireDtypeOf(construction)) {
    std::string kind;
    OP_REQUIRES_OK(construction, construction->GetAttr("kind", &kind));
    kind_ = DepartureNamed(kind);
    OP_REQUIRES_OK(construction, construction->GetAttr("N", &tensor_count_));
    OP_REQUIRES_OK(construction, construction->GetAttr("slot", &slot_));
  }

  void Compute(OpKernelContext* context) override {
    Request request = attributes_.NewRequest(kind_);
    request.reduce_op = ReduceOp::kAverage;
    request.dtype = ToDataType(context->input_dtype(0));
    request.wire_dtype = wire_dtype_;
    for (int i = 0; i < tensor_count_; ++i) {
      request.inputs.push_back(ViewOf(context->input(i)));
    }
    if (context->num_inputs() > tensor_count_) {
      request.able = FromTensorFlow(Reduction::ReadScalar(
          context, tensor_count_, "weight", &request.weight));
    }
    DepartedCalls::Get().Put(
        slot_,
        DepartedCall::Submit(std::move(request),
                             [](void* to, const void* from, size_t nbytes) {
                               if (nbytes > 0) std::memcpy(to, from, nbytes);
                               return Status::Ok();
                             }));
  }

 private:
  const Attributes attributes_;
  const std::optional<DataType> wire_dtype_;
  CollectiveKind kind_ = CollectiveKind::kAllreduce;
  int tensor_count_ = 0;
  int64_t slot_ = 0;
};

// Seldom: once for each meeting. So it may have a thread that waits, in place
// of one of those on which TensorFlow has put other ops of the same run.
class ArriveKernel : public AsyncOpKernel {
 public:
  explicit ArriveKernel(OpKernelConstruction* construction)
      : AsyncOpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("request_name", &name_));
    OP_REQUIRES_OK(construction, construction->GetAttr("slot", &slot_));
    OP_REQUIRES_OK(
        construction,
        ReadKnownShapes(construction, StrCat("RingKerasArrive '", name_, "'"),
                        &shapes_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const auto call = DepartedCalls::Get().Take(slot_);
    if (call == nullptr) {
      context->SetStatus(ToTensorFlow(NothingDeparted(name_)));
      return done();
    }
    auto runner = context->runner();
    // In a function, and not in the caller's thread.
    const bool waits_elsewhere =
        runner != nullptr && !call->IsDone() &&
        context->executor_type() != "SINGLE_THREADED_EXECUTOR";
    if (waits_elsewhere) {
      try {
        std::thread([this, context, call, done, runner = *runner] {
          const Status status = WaitUnlessCancelled(context, *call);
          // What follows `done` is the rest of TensorFlow's graph.
          runner([this, context, call, done, status] {
            context->SetStatus(Emit(context, *call, status));
            done();
          });
        }).detach();
        return;
      } catch (const std::system_error&) {
        // The system has no more threads: this one waits.
      }
    }
    context->SetStatus(
        Emit(context, *call, WaitUnlessCancelled(context, *call)));
    done();
  }

 private:
  // With an error if the step is cancelled meanwhile.
  Status WaitUnlessCancelled(OpKernelContext* context,
                             DepartedCall& call) const {
    CancellationManager* cancellation = context->cancellation_manager();
    if (cancellation == nullptr) return call.Wait();
    const auto token = cancellation->get_cancellation_token();
    const bool registered =
        cancellation->RegisterCallback(token, [&call] { call.Leave(); });
    if (!registered) call.Leave();
    const Status status = call.Wait();
    // Returns when the callback, if it has begun, has ended.
    if (registered) cancellation->DeregisterCallback(token);
    return status;
  }

  // What has come, as outputs.
  absl::Status Emit(OpKernelContext* context, const DepartedCall& call,
                    const Status& status) const {
    if (call.IsLeft()) {
      return absl::CancelledError(
          StrCat("collective '", name_,
                 "': the step was cancelled before every rank had entered it"));
    }
    if (!status.ok()) return ToTensorFlow(status);
    const auto results = call.Results();
    if (results.size() != shapes_.size()) {
      return ToTensorFlow(OtherResults(name_));
    }
    for (size_t i = 0; i < results.size(); ++i) {
      Tensor* output = nullptr;
      const absl::Status allocated =
          context->allocate_output(i, shapes_[i], &output);
      if (!allocated.ok()) return allocated;
      const size_t nbytes =
          output->NumElements() * SizeOf(ToDataType(output->dtype()));
      if (results[i].nbytes != nbytes) {
        return ToTensorFlow(OtherResults(name_));
      }
      if (nbytes > 0) std::memcpy(DataOf(*output), results[i].data, nbytes);
    }
    return absl::OkStatus();
  }

  std::string name_;
  int64_t slot_ = 0;
  std::vector<TensorShape> shapes_;
};

REGISTER_KERNEL_BUILDER(Name("RingKerasDepart").Device(tensorflow::DEVICE_CPU),
                        DepartKernel);
REGISTER_KERNEL_BUILDER(Name("RingKerasArrive").Device(tensorflow::DEVICE_CPU),
                        ArriveKernel);
// Between ranks for which this is worth while, the network is what takes time.
REGISTER_KERNEL_BUILDER(Name("RingKerasDepart")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("tensors")
                            .HostMemory("weight"),
                        DepartKernel);
REGISTER_KERNEL_BUILDER(Name("RingKerasArrive")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("results"),
                        ArriveKernel);

}  // namespace
}  // namespace ring_keras
