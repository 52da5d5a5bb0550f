#include <vector>

#include "tf_ops/collectives/nccl/algorithms.h"
#include "tf_ops/collectives/nccl/device_collective.h"
#include "tf_ops/collectives/nccl/device_reduction.h"
#include "tf_ops/collectives/rows.h"

namespace ring_keras::nccl {
namespace {

class Alone : public DeviceCollective {
 public:
  using DeviceCollective::DeviceCollective;

  Task Enqueue() override {
    switch (arguments().kind) {
      case CollectiveKind::kAllreduce:
        for (size_t i = 0; i < arguments().inputs.size(); ++i) {
          RING_KERAS_CO_RETURN_IF_ERROR(Scale(i, arguments().outputs[i]));
        }
        break;
      case CollectiveKind::kBroadcast:
        for (size_t i = 0; i < arguments().inputs.size(); ++i) {
          RING_KERAS_CO_RETURN_IF_ERROR(Copy(i, arguments().outputs[i]));
        }
        break;
      default: {
        const int64_t rows = RowCount(arguments().inputs[0].shape);
        StatusOr<char*> output = AllocateOutput(WithRows(arguments(), rows));
        RING_KERAS_CO_RETURN_IF_ERROR(output.status());
        if (arguments().received_splits != nullptr) {
          *arguments().received_splits = {rows};
        }
        co_return arguments().kind == CollectiveKind::kReduceScatter
            ? Scale(0, output.value())
            : Copy(0, output.value());
      }
    }
    co_return Status::Ok();
  }

 private:
  Status Copy(size_t index, void* output) {
    const TensorView& input = arguments().inputs[index];
    return CopyBytes(output, input.data,
                     ElementCount(input.shape) * SizeOf(arguments().dtype));
  }

  // Twice if there are two factors: an integer is rounded after each.
  Status Scale(size_t index, void* output) {
    const DataType dtype = arguments().dtype;
    const TensorView& input = arguments().inputs[index];
    const DeviceReduction reduction(arguments(), participants());
    const auto count = static_cast<uint64_t>(ElementCount(input.shape));
    if (reduction.before == 1) {
      RING_KERAS_RETURN_IF_ERROR(Copy(index, output));
    } else {
      RING_KERAS_RETURN_IF_ERROR(CopyScaled(dtype, dtype, reduction.before,
                                            {{input.data, output, count}}));
    }
    if (reduction.after == 1) return Status::Ok();
    return CopyScaled(dtype, dtype, reduction.after, {{output, output, count}});
  }
};

}  // namespace

std::unique_ptr<Collective> MakeAlone(const CollectiveArguments& arguments,
                                      Communicator& communicator) {
  return std::make_unique<Alone>(arguments, communicator);
}

}  // namespace ring_keras::nccl
