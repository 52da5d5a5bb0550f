// A collective that a TensorFlow op has handed to the engine.
#ifndef RING_KERAS_KERNELS_PENDING_H_
#define RING_KERAS_KERNELS_PENDING_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tf_ops/collectives/nccl/device_work.h"
#include "tf_ops/common/ticks.h"
#include "tf_ops/kernels/activity.h"
#include "tf_ops/kernels/drive_time.h"
#include "tf_ops/runtime/request.h"

namespace ring_keras {

// Owns the memory that the engine works on. It depends on no kernel's context,
// because a step may end, by an error elsewhere, while the engine still works.
//
// Where the tensors are a GPU's, the collective is ready for those who wait as
// soon as the device has been given all of it: what follows on TensorFlow's
// stream runs after it. The inputs are kept until the device is done.
class Pending : public std::enable_shared_from_this<Pending> {
 public:
  // `tensor_count`: calls of AddInput that are to come.
  static std::shared_ptr<Pending> Create(int tensor_count) {
    return std::shared_ptr<Pending>(new Pending(tensor_count));
  }

  // Tensor whose memory the request reads; returns the view of it.
  TensorView AddInput(const tensorflow::Tensor& input);

  // Output number `output_index`, like input number `input_index`: the input's
  // own memory where nobody else uses it. Call before AddInput, which is one
  // more user.
  //
  // `output_index` is kNoOutput where this kernel has none of its own.
  static constexpr int kNoOutput = -1;
  absl::Status AddOutput(tensorflow::OpKernelContext* context, int input_index,
                         int output_index, std::vector<void*>* pointers);
  // The same, of memory that is nobody's yet.
  absl::Status NewOutput(tensorflow::OpKernelContext* context, int output_index,
                         tensorflow::DataType dtype,
                         const tensorflow::TensorShape& shape,
                         std::vector<void*>* pointers);

  // For the request's only output, if its shape is known late.
  OutputAllocator LateOutput(tensorflow::OpKernelContext* context);

  // Rows that came from each rank become the second output.
  std::vector<int64_t>* ReceivedSplits();

  // Is called when the collective is over, before those who wait go on.
  void BeforeOthers(std::function<void()> task) { task_ = std::move(task); }

  // Hands the request to the engine and returns, once it has tried for about
  // `drive_for_s` to carry it out in this thread. Errors are told to those who
  // wait. Comes after AddOutput: memory that TensorFlow gives is free once its
  // stream has come this far.
  void Submit(Request request, tensorflow::OpKernelContext* context,
              double drive_for_s);

  // Carries out the request for an asynchronous op, as Submit and Await do.
  void Complete(Request request, tensorflow::OpKernelContext* context,
                tensorflow::AsyncOpKernel::DoneCallback done);

  // Ends an asynchronous op when the collective has ended: sets its outputs or
  // its error, then calls `done`; at once if that is now. If the step is
  // cancelled, the op ends then, and the collective goes on without it.
  //
  // Outputs go to the first that waits, so that ops after it may write to
  // them; for a second it is an error.
  void Await(tensorflow::OpKernelContext* context,
             tensorflow::AsyncOpKernel::DoneCallback done);

  // The same for an op that is not asynchronous: this thread waits.
  void Wait(tensorflow::OpKernelContext* context);

 private:
  struct Waiter;

  explicit Pending(int tensor_count);

  // "collective 'name'", for messages.
  static std::string Describe(const Request& request);
  // Says that somebody waits for it.
  void BeginWait();
  // Ties the request to the stream of the kernel, if its tensors are a GPU's.
  Status FollowStream(Request* request, tensorflow::OpKernelContext* context);
  // The engine's callbacks: the device has all of it; it is over.
  void Settle(const Status& status);
  void Finish(const Status& status);
  bool IsSettled();
  // Waits in this thread, which handles the program's signals, for Settle, or
  // until the step is cancelled. Whether it is settled.
  bool AwaitHere(tensorflow::CancellationManager* cancellation);
  // Only after Settle.
  void Emit(tensorflow::OpKernelContext* context);
  // What an op does on the stream of `context` comes after the collective.
  absl::Status HoldBack(tensorflow::OpKernelContext* context) const;

  std::string what_;  // Its description.
  ActivitySpan activity_;
  int communicator_id_ = 0;
  std::vector<tensorflow::Tensor> inputs_;
  std::vector<tensorflow::Tensor> outputs_;
  std::vector<int64_t> received_splits_;
  bool wants_received_splits_ = false;
  std::shared_ptr<DeviceWork> device_work_;  // Null: in host memory.
  std::function<void()> task_;

  std::atomic<bool> emitted_{false};
  std::atomic<Ticks> awaited_since_{0};  // By whoever was first to wait.

  std::mutex mutex_;  // Guards the rest.
  std::condition_variable changed_;
  ActivitySpan wait_activity_;
  bool settled_ = false;
  absl::Status status_;
  std::vector<std::shared_ptr<Waiter>> waiters_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_KERNELS_PENDING_H_
