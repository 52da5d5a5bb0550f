// A collective that was submitted, for threads that wait for it.
#ifndef RING_KERAS_RUNTIME_SUBMITTED_CALL_H_
#define RING_KERAS_RUNTIME_SUBMITTED_CALL_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "tf_ops/common/export.h"
#include "tf_ops/runtime/request.h"

namespace ring_keras {

// The waits let the program handle its signals, so hold no lock, and no GIL.
class RING_KERAS_EXPORT SubmittedCall {
 public:
  // Hands `request` to the engine, as Runtime::Submit does. Keeps `memory`,
  // which may be null, until it is done.
  static std::shared_ptr<SubmittedCall> Submit(
      Request request, double drive_for_s = 0,
      std::shared_ptr<void> memory = nullptr);

  // Returns when the results may be used: on a GPU, by what `stream` is given
  // from then on. Or after an error.
  Status Follow(void* stream = nullptr);

  // Returns when the memory of the request is no longer touched; or, with an
  // error, once somebody has called Leave.
  Status Wait();

  // For a call that has memory of its own: Wait returns, now and from now on.
  void Leave();
  // Whether that has been before the call was done.
  bool IsLeft();

  bool IsDone();

  // Of an output whose memory was asked for with its shape; empty before its
  // launch.
  Shape output_shape();

  // Rows that came from each rank, once an alltoall is done; else none.
  std::vector<int64_t> received_splits();

 private:
  explicit SubmittedCall(const Request& request)
      : communicator_id_(request.communicator_id),
        device_work_(request.device_work) {}

  // Somebody waits.
  void StampAwaited();

  const int communicator_id_;
  const std::shared_ptr<DeviceWork> device_work_;  // Null: in host memory.
  std::atomic<Ticks> awaited_since_{0};
  std::mutex mutex_;  // Guards the rest.
  std::condition_variable changed_;
  bool launched_ = false;  // The device has been given all of it.
  bool done_ = false;
  bool is_left_ = false;
  Status status_;
  // The engine's until it is launched, or done.
  Shape output_shape_;
  std::vector<int64_t> received_splits_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_RUNTIME_SUBMITTED_CALL_H_
