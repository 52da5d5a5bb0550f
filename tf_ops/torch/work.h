// A collective under way, as torch waits for it.
#ifndef RING_KERAS_TORCH_WORK_H_
#define RING_KERAS_TORCH_WORK_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "tf_ops/common/status.h"
#include "tf_ops/common/ticks.h"
#include "tf_ops/torch/deadlines.h"

namespace ring_keras::torch_backend {

// It keeps the memory that the engine works on, and ends when the engine has
// ended all of its requests.
class RingWork : public c10d::Work {
 public:
  // `results`: what it gives to those who ask it, or its future.
  RingWork(int rank, c10d::OpType type, const char* title,
           std::vector<at::Tensor> results, int communicator_id,
           std::shared_ptr<Deadlines> deadlines,
           std::shared_ptr<Deadline> deadline);
  // Also of one that was never begun.
  ~RingWork() override { deadline_->is_over = true; }

  // Before it is handed to the engine: how many requests there are, and what is
  // to be done in the end if none has failed.
  void Expect(int requests) { requests_ = in_engine_ = requests; }
  void Finally(std::function<void()> then) { then_ = std::move(then); }
  // Since when somebody waits; 0: nobody.
  const std::atomic<Ticks>& awaited_since() const { return awaited_since_; }

  // The engine has ended one request: no time limit concerns that any more.
  void EndInEngine() {
    if (in_engine_.fetch_sub(1) == 1) deadline_->is_over = true;
  }
  // The same, and all that follows from it. On a thread that may wait.
  void End(const Status& status);

  bool wait(std::chrono::milliseconds timeout) override;
  std::vector<at::Tensor> result() override { return results_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    return future_;
  }

 private:
  const std::vector<at::Tensor> results_;
  const int communicator_id_;
  const std::shared_ptr<Deadlines> deadlines_;  // Of its group.
  const std::shared_ptr<Deadline> deadline_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
  std::function<void()> then_;
  std::atomic<Ticks> awaited_since_{0};
  std::atomic<int> in_engine_{1};
  std::atomic<int> requests_{1};
  std::mutex error_mutex_;
  Status error_;  // The first.
};

}  // namespace ring_keras::torch_backend

#endif  // RING_KERAS_TORCH_WORK_H_
