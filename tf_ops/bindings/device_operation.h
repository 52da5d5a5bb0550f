// A collective on GPU tensors that was submitted and may not be done.
#ifndef RING_KERAS_BINDINGS_DEVICE_OPERATION_H_
#define RING_KERAS_BINDINGS_DEVICE_OPERATION_H_

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "tf_ops/common/status.h"
#include "tf_ops/runtime/request.h"

namespace ring_keras {

class DeviceOperation {
 public:
  // Submits the request, whose tensors are in the memory of `device` and are
  // used after what `stream` has been given so far.
  static StatusOr<std::shared_ptr<DeviceOperation>> Submit(Request request,
                                                           int device,
                                                           void* stream);

  // Waits until the device has been given the collective; then what `stream`
  // is given runs after it.
  Status Follow(void* stream);

  // Waits until the device is done with it.
  Status Wait();

  bool IsDone();

  // Rows that came from each rank, of an alltoall that is done.
  const std::vector<int64_t>& received_splits() const {
    return state_->received_splits;
  }

 private:
  // The request's callbacks hold it, too.
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool launched = false;
    bool done = false;
    Status status;
    std::vector<int64_t> received_splits;
  };

  std::shared_ptr<DeviceWork> work_;
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace ring_keras

#endif  // RING_KERAS_BINDINGS_DEVICE_OPERATION_H_
