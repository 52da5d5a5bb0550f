#include "tf_ops/kernels/pending.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <utility>

#include "tensorflow/core/framework/cancellation.h"
#include "tf_ops/kernels/conversions.h"
#include "tf_ops/runtime/runtime.h"

namespace ring_keras {

using tensorflow::CancellationManager;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

namespace {

std::string NameForPeople(const Request& request) {
  return StrCat("collective '", request.name, "'");
}

}  // namespace

// An op that has not called `done` yet. Its context is valid until it does, so
// only the one who claims the waiter may touch the context.
struct Pending::Waiter {
  using Closure = std::function<void()>;

  Waiter(OpKernelContext* context, tensorflow::AsyncOpKernel::DoneCallback done)
      : context(context),
        done(std::move(done)),
        cancellation(context->cancellation_manager()) {
    if (context->runner() != nullptr) runner = *context->runner();
    if (cancellation != nullptr) token = cancellation->get_cancellation_token();
  }

  bool Claim() { return !claimed.exchange(true); }

  // What follows `done` is the rest of TensorFlow's graph. It runs on the pool
  // that runs graphs: the engine's thread has bytes to move, and the pool for
  // parts of kernels would deadlock on kernels that wait for their parts.
  void Schedule(Closure closure) {
    if (runner) {
      runner(std::move(closure));
    } else {
      closure();
    }
  }

  OpKernelContext* context;
  tensorflow::AsyncOpKernel::DoneCallback done;
  CancellationManager* cancellation;
  tensorflow::CancellationToken token = 0;
  // A copy: the original may be gone once `done` has run.
  std::function<void(Closure)> runner;
  std::atomic<bool> claimed{false};
};

Pending::Pending(int tensor_count) {
  inputs_.reserve(tensor_count);
  outputs_.reserve(tensor_count);
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
          : tensorflow::AllocatorAttributes();
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

void Pending::Submit(Request request, double patience_s) {
  what_ = NameForPeople(request);
  const auto done = [self = shared_from_this()](const Status& status) {
    self->Finish(status);
  };
  Runtime::Get().Submit(std::move(request), done, patience_s);
}

void Pending::Complete(Request request, OpKernelContext* context,
                       tensorflow::AsyncOpKernel::DoneCallback done) {
  // How TensorFlow runs an op called by itself, outside of any function: in the
  // caller's thread, which waits, and may as well do the work.
  if (context->executor_type() == "SINGLE_THREADED_EXECUTOR") {
    what_ = NameForPeople(request);
    Finish(Runtime::Get().Run(std::move(request)));
  } else {
    Submit(std::move(request), kPatienceS);
  }
  Await(context, std::move(done));
}

void Pending::Finish(const Status& status) {
  if (status.ok() && wants_received_splits_) {
    const int64_t size = received_splits_.size();
    Tensor splits(tensorflow::DT_INT64, tensorflow::TensorShape({size}));
    std::copy(received_splits_.begin(), received_splits_.end(),
              splits.vec<int64_t>().data());
    outputs_.push_back(splits);
  }
  inputs_.clear();

  std::vector<std::shared_ptr<Waiter>> waiters;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    finished_ = true;
    status_ = ToTensorFlow(status);
    waiters.swap(waiters_);
  }
  for (const auto& waiter : waiters) {
    if (!waiter->Claim()) continue;
    waiter->Schedule([self = shared_from_this(), waiter] {
      if (waiter->cancellation != nullptr) {
        waiter->cancellation->DeregisterCallback(waiter->token);
      }
      self->Emit(waiter->context);
      waiter->done();
    });
  }
}

void Pending::Emit(OpKernelContext* context) {
  if (!status_.ok()) {
    context->SetStatus(status_);
    return;
  }
  if (emitted_.exchange(true)) {
    context->SetStatus(absl::FailedPreconditionError(
        what_ +
        ": its results went to an earlier wait. Wait once for each "
        "start."));
    return;
  }
  for (size_t i = 0; i < outputs_.size(); ++i) {
    context->set_output(i, std::move(outputs_[i]));
  }
}

void Pending::Await(OpKernelContext* context,
                    tensorflow::AsyncOpKernel::DoneCallback done) {
  const auto finished = [this] {
    std::lock_guard<std::mutex> lock(mutex_);
    return finished_;
  };
  if (finished()) {
    Emit(context);
    done();
    return;
  }

  auto waiter = std::make_shared<Waiter>(context, std::move(done));
  const auto cancel = [what = what_, waiter] {
    if (!waiter->Claim()) return;
    waiter->Schedule([what, waiter] {
      waiter->context->SetStatus(absl::CancelledError(
          what + ": the step was cancelled while ranks were still joining"));
      waiter->done();
    });
  };
  if (waiter->cancellation != nullptr &&
      !waiter->cancellation->RegisterCallback(waiter->token, cancel)) {
    cancel();
    return;
  }
  // From here on the step may be cancelled, and the context gone.
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!finished_) {
      waiters_.push_back(waiter);
      return;
    }
  }
  if (!waiter->Claim()) return;
  if (waiter->cancellation != nullptr) {
    waiter->cancellation->DeregisterCallback(waiter->token);
  }
  Emit(waiter->context);
  waiter->done();
}

}  // namespace ring_keras
