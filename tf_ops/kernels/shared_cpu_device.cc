#include "tf_ops/kernels/shared_cpu_device.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tensorflow/core/common_runtime/threadpool_device.h"
#include "tensorflow/core/framework/device_attributes.pb.h"
#include "tensorflow/core/framework/device_factory.h"
#include "tensorflow/core/protobuf/config.pb.h"
#include "tensorflow/core/public/session_options.h"
#include "tf_ops/common/export.h"
#include "tf_ops/common/logging.h"
#include "tf_ops/common/status.h"
#include "tf_ops/kernels/tensor_allocator.h"

namespace ring_keras {
namespace {

using tensorflow::Device;
using tensorflow::DeviceFactory;
using tensorflow::SessionOptions;

// Above those of TensorFlow's factories, with and without CUDA: of the
// factories for a kind of device, the one of the highest priority counts.
constexpr int kPriority = 500;

// Since when TensorFlow is to take it.
std::atomic<bool> is_offered{false};

// As tensors are, it lives until the process ends.
TensorAllocator& Tensors() {
  static auto* allocator = new TensorAllocator(*SharedTensorMemory());
  return *allocator;
}

class SharedCpuFactory final : public DeviceFactory {
 public:
  absl::Status ListPhysicalDevices(std::vector<std::string>* devices) override {
    devices->push_back("/physical_device:CPU:0");
    return absl::OkStatus();
  }

  // TensorFlow asks for devices several times, whenever it needs a set of them.
  absl::Status CreateDevices(
      const SessionOptions& options, const std::string& name_prefix,
      std::vector<std::unique_ptr<Device>>* devices) override {
    const auto& counts = options.config.device_count();
    const auto count = counts.find("CPU");
    const int wanted = count == counts.end() ? 1 : count->second;
    for (int number = 0; number < wanted; ++number) {
      devices->push_back(std::make_unique<tensorflow::ThreadPoolDevice>(
          options, StrCat(name_prefix, "/device:CPU:", number), kMemoryLimit,
          tensorflow::DeviceLocality(), &Tensors()));
    }
    return absl::OkStatus();
  }

 private:
  // What TensorFlow's own factory says of a CPU; nothing is limited by it.
  static constexpr tensorflow::Bytes kMemoryLimit{256 << 20};
};

}  // namespace

void SayIfTensorsArePrivate(tensorflow::OpKernelConstruction& construction) {
  if (!is_offered.load() ||
      construction.device_type() != tensorflow::DEVICE_CPU) {
    return;
  }
  const tensorflow::Allocator* used =
      construction.device()->GetAllocator(tensorflow::AllocatorAttributes());
  if (used == &Tensors()) return;
  static std::once_flag once;
  std::call_once(once, [] {
    Log(LogLevel::kDebug,
        "gradients are copied between the ranks of this host: TensorFlow had "
        "started before init()");
  });
}

}  // namespace ring_keras

// From now on TensorFlow makes its CPU so that tensors lie in shared memory, if
// there is any; without effect on one that it has made.
extern "C" RING_KERAS_EXPORT void RingKerasShareTensors() {
  if (!ring_keras::SharedTensorMemory()) return;
  static std::once_flag once;
  std::call_once(once, [] {
    ring_keras::is_offered.store(true);
    tensorflow::DeviceFactory::Register(
        "CPU", std::make_unique<ring_keras::SharedCpuFactory>(),
        ring_keras::kPriority, /*is_pluggable_device=*/false);
  });
}
