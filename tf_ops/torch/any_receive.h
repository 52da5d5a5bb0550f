// A tensor from whichever rank of a group sends one first, as torch waits for
// it.
#ifndef RING_KERAS_TORCH_ANY_RECEIVE_H_
#define RING_KERAS_TORCH_ANY_RECEIVE_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <chrono>
#include <exception>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

namespace ring_keras::torch_backend {

// Until its sender is known it takes part in nothing; from then on it is the
// receive from that rank.
class AnyReceive : public c10d::Work {
 public:
  using Tensors = std::vector<at::Tensor>;

  // `limit`: for how long it waits for a sender.
  AnyReceive(int rank, Tensors tensors, std::chrono::milliseconds limit);

  Tensors& tensors() { return tensors_; }
  // It has waited for too long if it has: it fails. Whether it has failed.
  bool HasFailed();
  // The one who calls this has found its sender, and calls Begin or Fail next;
  // false if it has failed.
  bool Claim();
  // `receive` is under way, from the rank at this place.
  void Begin(int source, c10::intrusive_ptr<c10d::Work> receive);
  void Fail(const std::exception_ptr& why) { Fail(State::kClaimed, why); }
  // Unless its sender is known.
  void GiveUp(const std::string& why);

  int sourceRank() const override;
  bool isCompleted() override;
  bool isSuccess() const override { return exception() == nullptr; }
  std::exception_ptr exception() const override;
  bool wait(std::chrono::milliseconds timeout) override;
  Tensors result() override { return tensors_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    return future_;
  }

 private:
  using Clock = std::chrono::steady_clock;

  enum class State { kSearching, kClaimed, kBegun, kFailed };

  // Null before it has begun.
  c10::intrusive_ptr<c10d::Work> receive() const;
  // If it is where it was then.
  void Fail(State before, const std::exception_ptr& why);
  void GiveUpLate(std::chrono::milliseconds limit);

  Tensors tensors_;
  const Clock::time_point began_ = Clock::now();
  const std::chrono::milliseconds limit_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
  // Guarded by Work's mutex_.
  State state_ = State::kSearching;
  c10::intrusive_ptr<c10d::Work> receive_;
  int source_ = -1;
};

}  // namespace ring_keras::torch_backend

#endif  // RING_KERAS_TORCH_ANY_RECEIVE_H_
