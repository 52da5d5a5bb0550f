#include "tf_ops/torch/work.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/distributed/c10d/exception.h>
#include <torch/csrc/utils/pybind.h>

#include <exception>
#include <string>
#include <utility>

#include "tf_ops/runtime/runtime.h"
#include "tf_ops/runtime/signals.h"

namespace ring_keras::torch_backend {

std::exception_ptr ErrorOf(const std::string& message) {
  try {
    C10_THROW_ERROR(DistBackendError, message);
  } catch (...) {
    return std::current_exception();
  }
}

void RaiseFromHandler() {
  const pybind11::gil_scoped_acquire acquire;
  pybind11::module_::import("ring_keras._native").attr("raise_from_handler")();
}

RingWork::RingWork(int rank, c10d::OpType type, const char* title,
                   std::vector<at::Tensor> results, int communicator_id,
                   std::shared_ptr<Deadlines> deadlines,
                   std::shared_ptr<Deadline> deadline)
    : Work(rank, type, title, results),
      results_(std::move(results)),
      communicator_id_(communicator_id),
      deadlines_(std::move(deadlines)),
      deadline_(std::move(deadline)) {}

RingWork::~RingWork() {
  deadline_->is_over = true;
  if (!end_.has_value()) return;
  // The thread may have no context on the device, and is to get none elsewhere.
  const c10::DeviceGuard guard(streams_->device());
  end_.reset();
}

void RingWork::Expect(int requests, std::optional<Streams> streams) {
  requests_ = in_engine_ = requests;
  streams_ = std::move(streams);
  std::vector<c10::Device> devices;
  if (streams_.has_value()) devices.push_back(streams_->device());
  future_ = c10::make_intrusive<c10::ivalue::Future>(
      c10::ListType::create(c10::TensorType::get()), std::move(devices));
}

void RingWork::Fail(const Status& status) {
  std::lock_guard<std::mutex> lock(error_mutex_);
  if (error_.ok()) error_ = status;
}

std::exception_ptr RingWork::Error() const {
  std::lock_guard<std::mutex> lock(error_mutex_);
  if (error_.ok()) return nullptr;
  return ErrorOf(
      deadline_->has_passed
          ? StrCat("[RK206] a collective of torch's group took longer than its "
                   "timeout of ",
                   deadline_->limit.count() / 1000.0,
                   " s, and was given up on all ranks.")
          : error_.CodedMessage());
}

void RingWork::End(const Status& status) {
  if (!status.ok()) Fail(status);
  if (requests_.fetch_sub(1) > 1) return;
  std::exception_ptr error = Error();
  c10::OptionalStreamGuard after;  // The future's end is a point in it.
  if (error == nullptr) {
    try {
      if (streams_.has_value()) after.reset_stream(streams_->after());
      for (const std::shared_ptr<DeviceWork>& device_work : device_works_) {
        const Status follows = streams_->Follow(*device_work);
        TORCH_CHECK_WITH(DistBackendError, follows.ok(),
                         follows.CodedMessage());
      }
      // Tensors of either mode may be written to in this one, and nothing is
      // recorded.
      const c10::InferenceMode mode;
      if (then_) then_();
      if (streams_.has_value()) {
        end_.emplace(streams_->device().type());
        end_->record(streams_->after());
      }
    } catch (...) {
      error = std::current_exception();
    }
  }
  then_ = nullptr;  // It keeps memory.
  device_works_.clear();
  finish(error);
  if (error) {
    future_->setError(error);
  } else {
    future_->markCompleted(c10::IValue(results_));
  }
}

std::exception_ptr RingWork::exception() const {
  const std::exception_ptr error = Work::exception();
  return error != nullptr ? error : Error();
}

bool RingWork::isCompleted() {
  if (!Work::isCompleted()) return false;
  // Once the engine has ended all, it is known whether one has failed.
  return !end_.has_value() || (in_engine_ <= 0 && end_->query());
}

void RingWork::HoldBackCurrentStream() {
  if (!end_.has_value()) return;
  const c10::DeviceGuard guard(streams_->device());
  end_->block(CurrentStream(streams_->device()));
}

void RingWork::synchronize() {
  if (streams_.has_value()) wait(kNoTimeout);
}

void RingWork::blockCurrentStream() {
  if (!streams_.has_value()) return Work::blockCurrentStream();
  wait(kNoTimeout);
}

bool RingWork::wait(std::chrono::milliseconds timeout) {
  const auto began = std::chrono::steady_clock::now();
  bool gave_up = false;
  std::unique_lock<std::mutex> lock(mutex_);
  if (!completed_) awaited_since_.store(Now());
  while (!cv_.wait_for(lock, kSignalInterval, [this] { return completed_; })) {
    lock.unlock();
    if (HandleSignals()) Runtime::Get().Interrupt(communicator_id_);
    // Once: it ends all that is pending by then, this included. Not what others
    // have begun since the engine has ended this one.
    if (timeout != kNoTimeout && !gave_up && !deadline_->is_over &&
        std::chrono::steady_clock::now() - began > timeout) {
      gave_up = true;
      deadlines_->Pass(*deadline_, timeout);
    }
    lock.lock();
  }
  lock.unlock();
  if (const std::exception_ptr error = exception(); error != nullptr) {
    RaiseFromHandler();
    std::rethrow_exception(error);
  }
  HoldBackCurrentStream();
  return true;
}

}  // namespace ring_keras::torch_backend
