// A collective under way, as torch waits for it.
#ifndef RING_KERAS_TORCH_WORK_H_
#define RING_KERAS_TORCH_WORK_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Event.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "tf_ops/common/status.h"
#include "tf_ops/common/ticks.h"
#include "tf_ops/torch/deadlines.h"
#include "tf_ops/torch/streams.h"

namespace ring_keras::torch_backend {

// torch's error of a back end.
std::exception_ptr ErrorOf(const std::string& message);

// What a handler of the program's has raised, such as KeyboardInterrupt, if one
// has.
void RaiseFromHandler();

// It keeps the memory that the engine works on, and ends when the engine has
// ended all of its requests.
//
// On a GPU it ends, for those who wait and for its future, when the device has
// been given all of them and what follows: streams wait then, and no host.
class RingWork : public c10d::Work {
 public:
  // `results`: what it gives to those who ask it, or its future.
  RingWork(int rank, c10d::OpType type, const char* title,
           std::vector<at::Tensor> results, int communicator_id,
           std::shared_ptr<Deadlines> deadlines,
           std::shared_ptr<Deadline> deadline);
  // Also of one that was never begun.
  ~RingWork() override;

  // Before it is handed to the engine: how many requests there are, on which
  // device, if on one, and what is to be done in the end if none has failed.
  void Expect(int requests, std::optional<Streams> streams);
  void Finally(std::function<void()> then) { then_ = std::move(then); }
  // One of the requests, before it is submitted.
  void Follows(std::shared_ptr<DeviceWork> device_work) {
    device_works_.push_back(std::move(device_work));
  }
  // Since when somebody waits; 0: nobody.
  const std::atomic<Ticks>& awaited_since() const { return awaited_since_; }

  // The engine has ended one request: no time limit concerns that any more.
  void EndInEngine() {
    if (in_engine_.fetch_sub(1) == 1) deadline_->is_over = true;
  }
  // The same, or the device has been given one, and all that follows from it.
  // On a thread that may wait.
  void End(const Status& status);
  // A request has failed, maybe after the device had been given it.
  void Fail(const Status& status);

  bool isCompleted() override;
  bool isSuccess() const override { return exception() == nullptr; }
  std::exception_ptr exception() const override;
  void synchronize() override;
  void blockCurrentStream() override;
  bool wait(std::chrono::milliseconds timeout) override;
  std::vector<at::Tensor> result() override { return results_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    return future_;
  }

 private:
  // Ok, or what to throw.
  std::exception_ptr Error() const;
  // The calling thread's current stream goes on after the collective.
  void HoldBackCurrentStream();

  const std::vector<at::Tensor> results_;
  const int communicator_id_;
  const std::shared_ptr<Deadlines> deadlines_;  // Of its group.
  const std::shared_ptr<Deadline> deadline_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // Since Expect().
  std::optional<Streams> streams_;                  // None: in host memory.
  std::vector<std::shared_ptr<DeviceWork>> device_works_;
  std::optional<c10::Event> end_;  // On the device; set before it completes.
  std::function<void()> then_;
  std::atomic<Ticks> awaited_since_{0};
  std::atomic<int> in_engine_{1};
  std::atomic<int> requests_{1};
  mutable std::mutex error_mutex_;
  Status error_;  // The first.
};

}  // namespace ring_keras::torch_backend

#endif  // RING_KERAS_TORCH_WORK_H_
