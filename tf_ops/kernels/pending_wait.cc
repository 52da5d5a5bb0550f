// Those who wait for a collective: ops that are not done, and threads.
#include <algorithm>
#include <functional>
#include <utility>

#include "tensorflow/core/framework/cancellation.h"
#include "tf_ops/kernels/conversions.h"
#include "tf_ops/kernels/device_stream.h"
#include "tf_ops/kernels/pending.h"
#include "tf_ops/runtime/runtime.h"
#include "tf_ops/runtime/signals.h"

namespace ring_keras {

using tensorflow::CancellationManager;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

namespace {

// How TensorFlow runs an op outside of any function: in the caller's thread,
// which waits, and may as well do the work.
bool IsCalledByItself(OpKernelContext* context) {
  return context->executor_type() == "SINGLE_THREADED_EXECUTOR";
}

absl::Status Cancelled(const std::string& what) {
  return absl::CancelledError(
      what + ": the step was cancelled before every rank had entered it");
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

void Pending::Complete(Request request, OpKernelContext* context,
                       tensorflow::AsyncOpKernel::DoneCallback done) {
  // With a GPU there is nothing to do here but to wait for it.
  if (IsCalledByItself(context) &&
      !StreamOf(context, tensorflow::DEVICE_MEMORY).has_value()) {
    what_ = Describe(request);
    const tsl::profiler::TraceMe trace([&] { return Activity(request); });
    Finish(Runtime::Get().Run(std::move(request)));
  } else {
    Submit(std::move(request), context, kDriveForS);
  }
  Await(context, std::move(done));
}

void Pending::Settle(const Status& status) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (settled_) return;  // By `launched`; no later call is at the same time.
    wait_activity_.End();
  }
  if (status.ok() && wants_received_splits_) {
    const int64_t size = received_splits_.size();
    Tensor splits(tensorflow::DT_INT64, tensorflow::TensorShape({size}));
    std::copy(received_splits_.begin(), received_splits_.end(),
              splits.vec<int64_t>().data());
    outputs_.push_back(splits);
  }

  std::vector<std::shared_ptr<Waiter>> waiters;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    settled_ = true;
    status_ = ToTensorFlow(status);
    waiters.swap(waiters_);
    changed_.notify_all();
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
  const absl::Status held_back = HoldBack(context);
  if (!held_back.ok()) {
    context->SetStatus(held_back);
    return;
  }
  for (size_t i = 0; i < outputs_.size(); ++i) {
    context->set_output(i, std::move(outputs_[i]));
  }
}

absl::Status Pending::HoldBack(OpKernelContext* context) const {
  if (context->num_outputs() == 0) return absl::OkStatus();
  const auto stream = StreamOf(context, context->output_memory_type(0));
  const bool is_here =
      device_work_ == nullptr
          ? !stream.has_value()
          : stream.has_value() && stream->device == device_work_->device();
  if (!is_here) {
    return absl::FailedPreconditionError(
        what_ +
        ": its start and its wait are on different devices. Put both under the "
        "same tf.device().");
  }
  if (device_work_ == nullptr) return absl::OkStatus();
  return ToTensorFlow(device_work_->Follow(stream->stream));
}

bool Pending::IsSettled() {
  std::lock_guard<std::mutex> lock(mutex_);
  return settled_;
}

bool Pending::AwaitHere(CancellationManager* cancellation) {
  bool cancelled = false;  // Guarded by mutex_, once anybody else knows of it.
  tensorflow::CancellationToken token = 0;
  if (cancellation != nullptr) {
    token = cancellation->get_cancellation_token();
    const bool registered =
        cancellation->RegisterCallback(token, [this, &cancelled] {
          std::lock_guard<std::mutex> lock(mutex_);
          cancelled = true;
          changed_.notify_all();
        });
    if (!registered) return IsSettled();
  }
  {
    std::unique_lock<std::mutex> lock(mutex_);
    WaitHandlingSignals(
        lock, changed_, [&] { return settled_ || cancelled; },
        communicator_id_);
  }
  // Returns when the callback, if it has begun, has ended.
  if (cancellation != nullptr) cancellation->DeregisterCallback(token);
  return IsSettled();
}

void Pending::Wait(OpKernelContext* context) {
  if (!IsSettled()) {
    BeginWait();
    if (!AwaitHere(context->cancellation_manager())) {
      context->SetStatus(Cancelled(what_));
      return;
    }
  }
  Emit(context);
}

void Pending::Await(OpKernelContext* context,
                    tensorflow::AsyncOpKernel::DoneCallback done) {
  // A step that is cancelled lets go of the handle that the caller has.
  const auto self = shared_from_this();
  if (!IsSettled()) {
    BeginWait();
    if (IsCalledByItself(context)) AwaitHere(nullptr);
  }
  if (IsSettled()) {
    Emit(context);
    done();
    return;
  }

  auto waiter = std::make_shared<Waiter>(context, std::move(done));
  const auto cancel = [what = what_, waiter] {
    if (!waiter->Claim()) return;
    waiter->Schedule([what, waiter] {
      waiter->context->SetStatus(Cancelled(what));
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
    if (!settled_) {
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
