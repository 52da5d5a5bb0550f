#include <cstring>
#include <memory>
#include <vector>

#include "tf_ops/collectives/algorithms.h"
#include "tf_ops/collectives/fused_tensors.h"
#include "tf_ops/collectives/message_exchange.h"
#include "tf_ops/collectives/partition.h"
#include "tf_ops/collectives/reduction.h"

namespace ring_keras {
namespace {

// The data are cut into one chunk per rank, each chunk into pieces. The pieces
// with the same index go around the ring by themselves, several at a time, so
// that a rank sends one piece while it reduces another.
class AllreduceRing : public Collective {
 public:
  AllreduceRing(const CollectiveArguments& arguments,
                Communicator& communicator, uint64_t key)
      : communicator_(communicator),
        key_(key),
        tensors_(arguments),
        reduction_(arguments),
        in_place_(arguments.outputs.size() == 1),
        data_(in_place_ ? static_cast<char*>(arguments.outputs[0]) : nullptr) {}

  Task Run(const Participants& participants) override {
    reduction_.Begin(participants);
    const size_t nbytes = tensors_.nbytes();
    if (!in_place_) {
      fusion_buffer_.reset(new char[nbytes]);
      data_ = fusion_buffer_.get();
    }
    tensors_.ForEach(
        0, nbytes, [&](const char* input, char*, size_t offset, size_t length) {
          reduction_.CopyIn(data_ + offset, input, length);
        });
    const size_t pieces = CeilDivide(ChunkBytes(0).size(), kPieceBytes);
    std::vector<Task> tasks;
    tasks.reserve(pieces);
    size_t running = 0;  // Index of the first task that has not ended.
    while (running < pieces && communicator_.status().ok()) {
      if (tasks.size() < pieces && tasks.size() - running < kPiecesUnderWay) {
        tasks.push_back(RunPiece(static_cast<uint32_t>(tasks.size())));
        tasks.back().Start();
      } else {
        Task* oldest = &tasks[running];
        co_await communicator_.Until([oldest] { return oldest->done(); });
        ++running;
      }
    }
    // Tasks must not be destroyed while they wait; a broken communicator ends
    // their waits.
    std::vector<Task>* all = &tasks;
    co_await communicator_.UntilAlways([all] { return AllDone(*all); });
    RING_KERAS_CO_RETURN_IF_ERROR(communicator_.status());
    if (!in_place_) {
      tensors_.ForEach(
          0, nbytes,
          [&](const char*, char* output, size_t offset, size_t length) {
            std::memcpy(output, data_ + offset, length);
          });
    }
    co_return Status::Ok();
  }

 private:
  static constexpr size_t kPieceBytes = size_t{512} << 10;
  static constexpr size_t kPiecesUnderWay = 4;

  static bool AllDone(const std::vector<Task>& tasks) {
    for (const Task& task : tasks) {
      if (!task.done()) return false;
    }
    return true;
  }

  Task RunPiece(uint32_t piece) {
    const int size = communicator_.size();
    const int rank = communicator_.rank();
    const int next = (rank + 1) % size;
    const int previous = (rank + size - 1) % size;
    MessageExchange exchange(communicator_, key_);
    uint32_t tag = piece * 2 * size;
    // Reduce-scatter: chunk c starts at rank c and is complete at rank c - 1.
    for (int step = 0; step < size - 1; ++step, ++tag) {
      const Range out = PieceBytes((rank + size - step) % size, piece);
      const Range in = PieceBytes((previous + size - step) % size, piece);
      exchange.ReceiveInto(previous, tag, data_ + in.begin, in.size(),
                           reduction_.function(), reduction_.element_nbytes());
      exchange.Send(next, tag, data_ + out.begin, out.size());
      co_await exchange.Done();
      RING_KERAS_CO_RETURN_IF_ERROR(communicator_.status());
    }
    const Range complete = PieceBytes(next, piece);
    reduction_.Finish(data_ + complete.begin, complete.size());
    // Allgather: the complete chunks go once around.
    for (int step = 0; step < size - 1; ++step, ++tag) {
      const Range out = PieceBytes((next + size - step) % size, piece);
      const Range in = PieceBytes((rank + size - step) % size, piece);
      exchange.Receive(previous, tag, data_ + in.begin, in.size());
      exchange.Send(next, tag, data_ + out.begin, out.size());
      co_await exchange.Done();
      RING_KERAS_CO_RETURN_IF_ERROR(communicator_.status());
    }
    co_return Status::Ok();
  }

  Range ChunkBytes(int chunk) const {
    const size_t element = reduction_.element_nbytes();
    const Range elements =
        Part(tensors_.nbytes() / element, communicator_.size(), chunk);
    return {elements.begin * element, elements.end * element};
  }
  Range PieceBytes(int chunk, size_t piece) const {
    return Piece(ChunkBytes(chunk), kPieceBytes, piece);
  }

  Communicator& communicator_;
  uint64_t key_;
  FusedTensors tensors_;
  Reduction reduction_;
  bool in_place_;
  char* data_;
  std::unique_ptr<char[]> fusion_buffer_;
};

}  // namespace

std::unique_ptr<Collective> MakeAllreduceRing(
    const CollectiveArguments& arguments, Communicator& communicator,
    uint64_t key) {
  return std::make_unique<AllreduceRing>(arguments, communicator, key);
}

}  // namespace ring_keras
