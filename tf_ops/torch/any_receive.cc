#include "tf_ops/torch/any_receive.h"

#include <ATen/core/jit_type.h>

#include <algorithm>
#include <utility>

#include "tf_ops/common/status.h"
#include "tf_ops/runtime/signals.h"
#include "tf_ops/torch/work.h"

namespace ring_keras::torch_backend {

AnyReceive::AnyReceive(int rank, Tensors tensors,
                       std::chrono::milliseconds limit)
    : Work(rank, c10d::OpType::RECVANYSOURCE, "ring:recv", tensors),
      tensors_(std::move(tensors)),
      limit_(limit),
      future_(c10::make_intrusive<c10::ivalue::Future>(
          c10::ListType::create(c10::TensorType::get()))) {}

bool AnyReceive::HasFailed() {
  if (Clock::now() - began_ > limit_) GiveUpLate(limit_);
  std::lock_guard<std::mutex> lock(mutex_);
  return state_ == State::kFailed;
}

bool AnyReceive::Claim() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (state_ == State::kFailed) return false;
  state_ = State::kClaimed;
  return true;
}

void AnyReceive::Begin(int source, c10::intrusive_ptr<c10d::Work> receive) {
  const auto end = receive->getFuture();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    state_ = State::kBegun;
    source_ = source;
    receive_ = std::move(receive);
  }
  cv_.notify_all();
  end->addCallback([future = future_](c10::ivalue::Future& ended) {
    if (ended.hasError()) {
      future->setError(ended.exception_ptr());
    } else {
      future->markCompleted(ended.value());
    }
  });
}

void AnyReceive::Fail(State before, const std::exception_ptr& why) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (state_ != before) return;
    state_ = State::kFailed;
  }
  finish(why);
  future_->setError(why);
}

void AnyReceive::GiveUp(const std::string& why) {
  Fail(State::kSearching, ErrorOf(why));
}

void AnyReceive::GiveUpLate(std::chrono::milliseconds limit) {
  GiveUp(
      StrCat("[RK160] recv() from any rank got nothing within its timeout "
             "of ",
             limit.count() / 1000.0,
             " s: no rank has sent to this one in the same group and with "
             "the same tag."));
}

c10::intrusive_ptr<c10d::Work> AnyReceive::receive() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return receive_;
}

int AnyReceive::sourceRank() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return source_;
}

bool AnyReceive::isCompleted() {
  const auto begun = receive();
  return begun != nullptr ? begun->isCompleted() : Work::isCompleted();
}

std::exception_ptr AnyReceive::exception() const {
  const auto begun = receive();
  return begun != nullptr ? begun->exception() : Work::exception();
}

bool AnyReceive::wait(std::chrono::milliseconds timeout) {
  const auto is_settled = [this] {
    return state_ == State::kBegun || completed_;
  };
  std::unique_lock<std::mutex> lock(mutex_);
  while (!cv_.wait_for(lock, kSignalInterval, is_settled)) {
    lock.unlock();
    if (HandleSignals()) GiveUp("recv() from any rank was interrupted.");
    if (timeout != kNoTimeout && Clock::now() - began_ > timeout) {
      GiveUpLate(timeout);
    }
    lock.lock();
  }
  const auto begun = receive_;
  const std::exception_ptr error = exception_;
  lock.unlock();
  if (begun == nullptr) {
    RaiseFromHandler();
    std::rethrow_exception(error);
  }
  if (timeout == kNoTimeout) return begun->wait(timeout);
  const auto passed = std::chrono::duration_cast<std::chrono::milliseconds>(
      Clock::now() - began_);
  return begun->wait(std::max(timeout - passed, std::chrono::milliseconds(1)));
}

}  // namespace ring_keras::torch_backend
