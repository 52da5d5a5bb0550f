#include <vector>

#include "tf_ops/collectives/nccl/algorithms.h"
#include "tf_ops/collectives/nccl/device_collective.h"
#include "tf_ops/collectives/nccl/device_reduction.h"
#include "tf_ops/collectives/nccl/packing.h"

namespace ring_keras::nccl {
namespace {

constexpr char kAllreduceCall[] = "allreduce";

class Allreduce : public DeviceCollective {
 public:
  using DeviceCollective::DeviceCollective;

  Task Enqueue() override {
    const DataType dtype = arguments().dtype;
    const size_t element_nbytes = SizeOf(dtype);
    const DeviceReduction reduction(arguments(), participants());
    std::vector<size_t> small;
    std::vector<size_t> large;
    Sort(&small, &large);

    int large_op = reduction.op;
    if (!large.empty() && reduction.scales_in_nccl) {
      StatusOr<int> op = device().MakeScaledSum(dtype, reduction.before);
      RING_KERAS_CO_RETURN_IF_ERROR(op.status());
      large_op = op.value();
    }
    const bool scaled_before =
        reduction.before != 1 && !reduction.scales_in_nccl;
    if (scaled_before) {
      RING_KERAS_CO_RETURN_IF_ERROR(
          CopyScaled(dtype, dtype, reduction.before, Whole(large, false)));
    }
    // The large ones go with the first round.
    const auto add_large = [&](Calls& calls) {
      for (const cuda::Segment& tensor : Whole(large, scaled_before)) {
        calls.AllReduce(tensor.from, tensor.to, tensor.count, reduction.dtype,
                        large_op);
      }
      large.clear();
    };
    const std::vector<size_t> every_large = large;

    for (const PackedRound& round :
         Pack(arguments(), small, kFusionBufferBytes / element_nbytes)) {
      StatusOr<char*> buffer = device().GetBuffer();
      RING_KERAS_CO_RETURN_IF_ERROR(buffer.status());
      char* data = buffer.value();
      RING_KERAS_CO_RETURN_IF_ERROR(CopyScaled(dtype, dtype, reduction.before,
                                               round.In(data, element_nbytes)));
      Task issued = device().Issue(kAllreduceCall, [&](Calls& calls) {
        calls.AllReduce(data, data, round.count, reduction.dtype, reduction.op);
        add_large(calls);
      });
      RING_KERAS_CO_RETURN_IF_ERROR(co_await issued);
      RING_KERAS_CO_RETURN_IF_ERROR(CopyScaled(
          dtype, dtype, reduction.after, round.Out(data, element_nbytes)));
    }
    if (!large.empty()) {
      Task issued = device().Issue(kAllreduceCall, add_large);
      RING_KERAS_CO_RETURN_IF_ERROR(co_await issued);
    }
    if (large_op != reduction.op) device().DropScaledSum(large_op);
    if (reduction.after != 1) {
      RING_KERAS_CO_RETURN_IF_ERROR(
          CopyScaled(dtype, dtype, reduction.after, Whole(every_large, true)));
    }
    co_return Status::Ok();
  }

 private:
  // One alone gains nothing from the buffer either.
  void Sort(std::vector<size_t>* small, std::vector<size_t>* large) const {
    const size_t count = arguments().inputs.size();
    for (size_t i = 0; i < count; ++i) {
      const size_t nbytes =
          ElementCount(arguments().inputs[i].shape) * SizeOf(arguments().dtype);
      if (nbytes == 0) continue;
      (count == 1 || nbytes >= kPackedBelowBytes ? large : small)->push_back(i);
    }
  }

  // The tensors from their inputs, or from where their outputs are, to their
  // outputs.
  std::vector<cuda::Segment> Whole(const std::vector<size_t>& tensors,
                                   bool in_place) const {
    std::vector<cuda::Segment> segments;
    for (const size_t i : tensors) {
      const TensorView& input = arguments().inputs[i];
      void* output = arguments().outputs[i];
      segments.push_back({in_place ? output : input.data, output,
                          static_cast<uint64_t>(ElementCount(input.shape))});
    }
    return segments;
  }
};

}  // namespace

std::unique_ptr<Collective> MakeAllreduce(const CollectiveArguments& arguments,
                                          Communicator& communicator) {
  return std::make_unique<Allreduce>(arguments, communicator);
}

}  // namespace ring_keras::nccl
