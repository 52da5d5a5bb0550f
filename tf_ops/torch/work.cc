#include "tf_ops/torch/work.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/distributed/c10d/exception.h>
#include <torch/csrc/utils/pybind.h>

#include <exception>
#include <string>
#include <utility>

#include "tf_ops/runtime/runtime.h"
#include "tf_ops/runtime/signals.h"

namespace ring_keras::torch_backend {
namespace {

std::exception_ptr ErrorOf(const std::string& message) {
  try {
    C10_THROW_ERROR(DistBackendError, message);
  } catch (...) {
    return std::current_exception();
  }
}

// What a handler of the program's has raised, such as KeyboardInterrupt, if one
// has.
void RaiseFromHandler() {
  const pybind11::gil_scoped_acquire acquire;
  pybind11::module_::import("ring_keras._native").attr("raise_from_handler")();
}

}  // namespace

RingWork::RingWork(int rank, c10d::OpType type, const char* title,
                   std::vector<at::Tensor> results, int communicator_id,
                   std::shared_ptr<Deadlines> deadlines,
                   std::shared_ptr<Deadline> deadline)
    : Work(rank, type, title, results),
      results_(std::move(results)),
      communicator_id_(communicator_id),
      deadlines_(std::move(deadlines)),
      deadline_(std::move(deadline)),
      future_(c10::make_intrusive<c10::ivalue::Future>(
          c10::ListType::create(c10::TensorType::get()))) {}

void RingWork::End(const Status& status) {
  if (!status.ok()) {
    std::lock_guard<std::mutex> lock(error_mutex_);
    if (error_.ok()) error_ = status;
  }
  if (requests_.fetch_sub(1) > 1) return;
  std::exception_ptr error;
  if (!error_.ok()) {
    error = ErrorOf(
        deadline_->has_passed
            ? StrCat(
                  "[RK206] a collective of torch's group took longer than its "
                  "timeout of ",
                  deadline_->limit.count() / 1000.0,
                  " s, and was given up on all ranks.")
            : error_.CodedMessage());
  } else if (then_) {
    try {
      // Tensors of either mode may be written to in this one, and nothing is
      // recorded.
      const c10::InferenceMode mode;
      then_();
    } catch (...) {
      error = std::current_exception();
    }
  }
  then_ = nullptr;  // It keeps memory.
  finish(error);
  if (error) {
    future_->setError(error);
  } else {
    future_->markCompleted(c10::IValue(results_));
  }
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
  const std::exception_ptr error = exception_;
  lock.unlock();
  if (error == nullptr) return true;
  RaiseFromHandler();
  std::rethrow_exception(error);
}

}  // namespace ring_keras::torch_backend
