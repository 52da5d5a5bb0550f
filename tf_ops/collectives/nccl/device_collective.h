// A collective on tensors in GPU memory: the engine's side waits for what the
// launch thread and the device do.
#ifndef RING_KERAS_COLLECTIVES_NCCL_DEVICE_COLLECTIVE_H_
#define RING_KERAS_COLLECTIVES_NCCL_DEVICE_COLLECTIVE_H_

#include <string>
#include <vector>

#include "tf_ops/collectives/collective.h"
#include "tf_ops/collectives/nccl/device_communicator.h"
#include "tf_ops/collectives/nccl/launch.h"
#include "tf_ops/cuda/pack.h"

namespace ring_keras::nccl {

class DeviceCollective : public Collective, public Launch {
 public:
  // Everything passed by reference outlives this.
  DeviceCollective(const CollectiveArguments& arguments,
                   Communicator& communicator);

  std::string Payload() override;
  // Ends when the device has been given everything.
  Task Run(const Participants& participants) override;
  Task Finish() override;

  std::string unique_id() const override {
    return std::string((*participants_)[0].payload);
  }

 protected:
  // For Enqueue(), in the launch thread:

  const CollectiveArguments& arguments() const { return arguments_; }
  const Participants& participants() const { return *participants_; }
  int rank() const { return device_.rank(); }
  int size() const { return device_.size(); }
  DeviceCommunicator& device() const { return device_; }

  // Memory for the output, which what follows in the stream may write to.
  StatusOr<char*> AllocateOutput(const Shape& shape);
  // In the stream: to[i] = from[i] * scale. Empty segments are left out.
  Status CopyScaled(DataType from, DataType to, double scale,
                    std::vector<cuda::Segment> segments);
  Status CopyBytes(void* to, const void* from, size_t nbytes);

 private:
  // Waits until the launch has come so far, or failed.
  Task Reach(State state);

  const CollectiveArguments& arguments_;
  Communicator& communicator_;
  DeviceCommunicator& device_;
  const Participants* participants_ = nullptr;
};

}  // namespace ring_keras::nccl

#endif  // RING_KERAS_COLLECTIVES_NCCL_DEVICE_COLLECTIVE_H_
