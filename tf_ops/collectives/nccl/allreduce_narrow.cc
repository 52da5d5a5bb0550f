#include <numeric>
#include <vector>

#include "tf_ops/collectives/nccl/algorithms.h"
#include "tf_ops/collectives/nccl/device_collective.h"
#include "tf_ops/collectives/nccl/device_reduction.h"
#include "tf_ops/collectives/nccl/packing.h"
#include "tf_ops/collectives/partition.h"

namespace ring_keras::nccl {
namespace {

constexpr size_t kNarrowBytes = 2;

class AllreduceNarrow : public DeviceCollective {
 public:
  using DeviceCollective::DeviceCollective;

  Task Enqueue() override {
    const DataType dtype = arguments().dtype;
    const DataType wire = *arguments().wire_dtype;
    const DeviceReduction reduction(arguments(), participants());
    std::vector<size_t> everything(arguments().inputs.size());
    std::iota(everything.begin(), everything.end(), size_t{0});
    // One half of the buffer for this rank's data, one for what the others send
    // of this rank's part; both in as many parts as there are ranks.
    const uint64_t capacity =
        kFusionBufferBytes / 2 / kNarrowBytes / row() * row();

    for (const PackedRound& round : Pack(arguments(), everything, capacity)) {
      StatusOr<char*> buffer = device().GetBuffer();
      RING_KERAS_CO_RETURN_IF_ERROR(buffer.status());
      char* own = buffer.value();
      RING_KERAS_CO_RETURN_IF_ERROR(CopyScaled(dtype, wire, reduction.before,
                                               round.In(own, kNarrowBytes)));
      Task reduced = reduction.op == kSum
                         ? Sum(reduction, own, round.count)
                         : Combine(reduction, own, round.count);
      RING_KERAS_CO_RETURN_IF_ERROR(co_await reduced);
      RING_KERAS_CO_RETURN_IF_ERROR(CopyScaled(wire, dtype, reduction.after,
                                               round.Out(own, kNarrowBytes)));
    }
    co_return Status::Ok();
  }

 private:
  uint64_t row() const { return kPackedAlignment * size(); }

  // In float32, by a kernel of ours: NCCL would round after every rank.
  Task Sum(const DeviceReduction& reduction, char* own, uint64_t packed) {
    const DataType wire = *arguments().wire_dtype;
    const int wire_number = *NumberOf(wire);
    char* received = own + kFusionBufferBytes / 2;
    const uint64_t count = CeilDivide(packed, row()) * kPackedAlignment;
    const auto part = [count](char* data, int rank) {
      return data + rank * count * kNarrowBytes;
    };
    Task traded = device().Issue("allreduce, parts", [&](Calls& calls) {
      for (int peer = 0; peer < size(); ++peer) {
        calls.Send(part(own, peer), count, wire_number, peer);
        calls.Receive(part(received, peer), count, wire_number, peer);
      }
    });
    RING_KERAS_CO_RETURN_IF_ERROR(co_await traded);
    RING_KERAS_CO_RETURN_IF_ERROR(
        cuda::SumPieces(device().device(), device().stream(), wire, received,
                        size(), count, reduction.headroom, part(own, rank())));
    Task gathered = device().Issue("allreduce, sums", [&](Calls& calls) {
      calls.AllGather(part(own, rank()), own, count, wire_number);
    });
    co_return co_await gathered;
  }

  // Of any other op, by NCCL: the least and the largest are not rounded, and a
  // product is in the type that was asked for.
  Task Combine(const DeviceReduction& reduction, char* own, uint64_t count) {
    Task combined = device().Issue("allreduce", [&](Calls& calls) {
      calls.AllReduce(own, own, count, *NumberOf(*arguments().wire_dtype),
                      reduction.op);
    });
    co_return co_await combined;
  }
};

}  // namespace

std::unique_ptr<Collective> MakeAllreduceNarrow(
    const CollectiveArguments& arguments, Communicator& communicator) {
  return std::make_unique<AllreduceNarrow>(arguments, communicator);
}

}  // namespace ring_keras::nccl
