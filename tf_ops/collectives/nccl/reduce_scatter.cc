#include <algorithm>
#include <vector>

#include "tf_ops/collectives/nccl/algorithms.h"
#include "tf_ops/collectives/nccl/device_collective.h"
#include "tf_ops/collectives/nccl/device_reduction.h"
#include "tf_ops/collectives/rows.h"

namespace ring_keras::nccl {
namespace {

constexpr char kReduceScatterCall[] = "reduce_scatter";

class ReduceScatter : public DeviceCollective {
 public:
  using DeviceCollective::DeviceCollective;

  Task Enqueue() override {
    const int64_t rows = RowCount(arguments().inputs[0].shape);
    row_nbytes_ = RowBytes(arguments());
    const Range own = ReduceScatterRows(rows, size(), rank());
    StatusOr<char*> output =
        AllocateOutput(WithRows(arguments(), static_cast<int64_t>(own.size())));
    RING_KERAS_CO_RETURN_IF_ERROR(output.status());
    if (rows * row_nbytes_ == 0) co_return Status::Ok();
    const DeviceReduction reduction(arguments(), participants());
    // The same on every rank: all make the same calls.
    const bool fits = rows * row_nbytes_ <= kFusionBufferBytes;
    Task reduced = rows % size() == 0 && (reduction.scales_in_nccl || fits)
                       ? AtOnce(reduction, output.value())
                       : InPieces(reduction, output.value());
    co_return co_await reduced;
  }

 private:
  // Equal parts, in one call. Where NCCL does not scale, every rank reads from
  // the buffer, whether anything multiplies its input or not: NCCL must not get
  // registered memory from some ranks and other memory from the rest.
  Task AtOnce(const DeviceReduction& reduction, char* output) {
    const DataType dtype = arguments().dtype;
    const Shape& shape = arguments().inputs[0].shape;
    const auto count = static_cast<uint64_t>(ElementCount(shape));
    const void* input = arguments().inputs[0].data;
    int op = reduction.op;
    if (reduction.scales_in_nccl) {
      StatusOr<int> made = device().MakeScaledSum(dtype, reduction.before);
      RING_KERAS_CO_RETURN_IF_ERROR(made.status());
      op = made.value();
    } else {
      StatusOr<char*> buffer = device().GetBuffer();
      RING_KERAS_CO_RETURN_IF_ERROR(buffer.status());
      RING_KERAS_CO_RETURN_IF_ERROR(CopyScaled(
          dtype, dtype, reduction.before, {{input, buffer.value(), count}}));
      input = buffer.value();
    }
    const uint64_t own_count = count / size();
    Task issued = device().Issue(kReduceScatterCall, [&](Calls& calls) {
      calls.ReduceScatter(input, output, own_count, reduction.dtype, op);
    });
    RING_KERAS_CO_RETURN_IF_ERROR(co_await issued);
    if (op != reduction.op) device().DropScaledSum(op);
    if (reduction.after == 1) co_return Status::Ok();
    co_return CopyScaled(dtype, dtype, reduction.after,
                         {{output, output, own_count}});
  }

  // Every part goes through the buffer in pieces of one length, the last ones
  // padded with what lies there.
  Task InPieces(const DeviceReduction& reduction, char* output) {
    const DataType dtype = arguments().dtype;
    const size_t element_nbytes = SizeOf(dtype);
    StatusOr<char*> buffer = device().GetBuffer();
    RING_KERAS_CO_RETURN_IF_ERROR(buffer.status());
    const size_t capacity =
        kFusionBufferBytes / size() / kAlignment * kAlignment;
    const size_t longest = PartOf(0).size();  // The first has most rows.
    for (size_t at = 0; at < longest; at += capacity) {
      const size_t nbytes =
          std::min(capacity, CeilDivide(longest - at, kAlignment) * kAlignment);
      std::vector<cuda::Segment> pack;
      for (int peer = 0; peer < size(); ++peer) {
        const Range piece = Piece(PartOf(peer), capacity, at / capacity);
        pack.push_back(
            {static_cast<const char*>(arguments().inputs[0].data) + piece.begin,
             buffer.value() + peer * nbytes, piece.size() / element_nbytes});
      }
      RING_KERAS_CO_RETURN_IF_ERROR(
          CopyScaled(dtype, dtype, reduction.before, std::move(pack)));
      char* own = buffer.value() + rank() * nbytes;
      Task issued = device().Issue(kReduceScatterCall, [&](Calls& calls) {
        calls.ReduceScatter(buffer.value(), own, nbytes / element_nbytes,
                            reduction.dtype, reduction.op);
      });
      RING_KERAS_CO_RETURN_IF_ERROR(co_await issued);
      const Range piece = Piece(PartOf(rank()), capacity, at / capacity);
      RING_KERAS_CO_RETURN_IF_ERROR(
          CopyScaled(dtype, dtype, reduction.after,
                     {{own, output + at, piece.size() / element_nbytes}}));
    }
    co_return Status::Ok();
  }

  // The bytes of the input that are reduced for a rank.
  Range PartOf(int rank) const {
    const Range rows =
        ReduceScatterRows(RowCount(arguments().inputs[0].shape), size(), rank);
    return {rows.begin * row_nbytes_, rows.end * row_nbytes_};
  }

  static constexpr size_t kAlignment = 16;
  size_t row_nbytes_ = 0;
};

}  // namespace

std::unique_ptr<Collective> MakeReduceScatter(
    const CollectiveArguments& arguments, Communicator& communicator) {
  return std::make_unique<ReduceScatter>(arguments, communicator);
}

}  // namespace ring_keras::nccl
