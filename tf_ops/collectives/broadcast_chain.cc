#include <cstring>
#include <memory>

#include "tf_ops/collectives/algorithms.h"
#include "tf_ops/collectives/fused_tensors.h"
#include "tf_ops/collectives/message_exchange.h"
#include "tf_ops/collectives/partition.h"

namespace ring_keras {
namespace {

class BroadcastChain : public Collective {
 public:
  BroadcastChain(const CollectiveArguments& arguments,
                 Communicator& communicator)
      : arguments_(arguments),
        communicator_(communicator),
        tensors_(arguments) {}

  bool can_repeat() const override { return true; }

  Task Run(const Participants& participants) override {
    const int size = communicator_.size();
    const int rank = communicator_.rank();
    const bool first = rank == arguments_.root;
    const bool last = (rank + 1) % size == arguments_.root;
    const int next = (rank + 1) % size;
    const int previous = (rank + size - 1) % size;
    const size_t nbytes = tensors_.nbytes();
    buffer_.reset(new char[nbytes]);
    char* data = buffer_.get();
    if (first) {
      tensors_.ForEach(
          0, nbytes,
          [&](const char* input, char* output, size_t offset, size_t length) {
            std::memcpy(data + offset, input, length);
            if (output != input) std::memcpy(output, input, length);
          });
    }
    MessageExchange sends(communicator_, participants.key);
    MessageExchange receives(communicator_, participants.key);
    const size_t pieces = CeilDivide(nbytes, kPieceBytes);
    for (uint32_t tag = 0; tag < pieces; ++tag) {
      const Range piece = Piece({0, nbytes}, kPieceBytes, tag);
      if (!first) {
        receives.Receive(previous, tag, data + piece.begin, piece.size());
        co_await receives.Done();
        if (!communicator_.status().ok()) break;
      }
      if (!last) sends.Send(next, tag, data + piece.begin, piece.size());
    }
    co_await sends.Done();
    RING_KERAS_CO_RETURN_IF_ERROR(communicator_.status());
    if (!first) {
      tensors_.ForEach(
          0, nbytes,
          [&](const char*, char* output, size_t offset, size_t length) {
            std::memcpy(output, data + offset, length);
          });
    }
    co_return Status::Ok();
  }

 private:
  static constexpr size_t kPieceBytes = size_t{256} << 10;

  const CollectiveArguments& arguments_;
  Communicator& communicator_;
  FusedTensors tensors_;
  std::unique_ptr<char[]> buffer_;
};

}  // namespace

std::unique_ptr<Collective> MakeBroadcastChain(
    const CollectiveArguments& arguments, Communicator& communicator) {
  return std::make_unique<BroadcastChain>(arguments, communicator);
}

}  // namespace ring_keras
