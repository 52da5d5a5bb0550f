#include <memory>
#include <vector>

#include "tf_ops/collectives/algorithms.h"
#include "tf_ops/collectives/fused_tensors.h"
#include "tf_ops/collectives/message_exchange.h"
#include "tf_ops/collectives/reduction.h"

namespace ring_keras {
namespace {

class AllreduceDirect : public Collective {
 public:
  AllreduceDirect(const CollectiveArguments& arguments,
                  Communicator& communicator, uint64_t key)
      : communicator_(communicator),
        key_(key),
        tensors_(arguments),
        reduction_(arguments) {}

  Task Run(const Participants& participants) override {
    reduction_.Begin(participants);
    if (communicator_.size() == 1) {
      Combine();
      co_return Status::Ok();
    }
    // One place per rank, in rank order; this rank's is what it sends.
    const size_t nbytes = tensors_.nbytes();
    gathered_.resize(nbytes * communicator_.size());
    char* own = gathered_.data() + nbytes * communicator_.rank();
    tensors_.ForEach(
        0, nbytes, [&](const char* input, char*, size_t offset, size_t length) {
          reduction_.CopyIn(own + offset, input, length);
        });
    MessageExchange exchange(communicator_, key_);
    for (int rank = 0; rank < communicator_.size(); ++rank) {
      if (rank == communicator_.rank()) continue;
      exchange.Receive(rank, 0, gathered_.data() + nbytes * rank, nbytes);
      exchange.Send(rank, 0, own, nbytes);
    }
    co_await exchange.Done();
    RING_KERAS_CO_RETURN_IF_ERROR(communicator_.status());
    Combine();
    co_return Status::Ok();
  }

 private:
  void Combine() {
    const size_t total = tensors_.nbytes();
    std::vector<const void*> sources(communicator_.size());
    tensors_.ForEach(
        0, total,
        [&](const char* input, char* output, size_t offset, size_t nbytes) {
          if (communicator_.size() == 1) {
            reduction_.CopyIn(output, input, nbytes);
            reduction_.Finish(output, nbytes);
            return;
          }
          for (size_t rank = 0; rank < sources.size(); ++rank) {
            sources[rank] = gathered_.data() + total * rank + offset;
          }
          reduction_.Combine(output, sources.data(), communicator_.size(),
                             nbytes);
        });
  }

  Communicator& communicator_;
  uint64_t key_;
  FusedTensors tensors_;
  Reduction reduction_;
  std::vector<char> gathered_;
};

}  // namespace

std::unique_ptr<Collective> MakeAllreduceDirect(
    const CollectiveArguments& arguments, Communicator& communicator,
    uint64_t key) {
  return std::make_unique<AllreduceDirect>(arguments, communicator, key);
}

}  // namespace ring_keras
