#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tf_ops/collectives/algorithms.h"
#include "tf_ops/collectives/wire_tensors.h"

namespace ring_keras {
namespace {

class AllreduceDirect : public Collective {
 public:
  explicit AllreduceDirect(const CollectiveArguments& arguments)
      : is_average_(arguments.reduce_op == ReduceOp::kAverage),
        wire_dtype_(arguments.wire_dtype.value_or(arguments.dtype)),
        tensors_(arguments) {}

  std::string Payload() override {
    std::string payload(tensors_.nbytes(), '\0');
    tensors_.Pack({0, payload.size()}, payload.data());
    return payload;
  }

  Task Run(const Participants& participants) override {
    std::optional<double> share;
    if (is_average_) share = ShareOfWeight(participants);
    std::vector<std::string> weighted(participants.size());
    std::vector<const void*> sources;
    for (size_t rank = 0; rank < participants.size(); ++rank) {
      const std::string* payload = &participants[rank].payload;
      if (payload->size() != tensors_.nbytes()) {
        co_return Status(
            StatusCode::kInternal,
            StrCat("a rank sent ", payload->size(), " of ", tensors_.nbytes(),
                   " bytes. Is the same ring_keras installed on every host?"));
      }
      if (share.has_value()) {
        // Unknown when the payload was packed.
        weighted[rank].resize(payload->size());
        Scale(wire_dtype_, weighted[rank].data(), payload->data(),
              participants[rank].weight * *share,
              payload->size() / SizeOf(wire_dtype_));
        payload = &weighted[rank];
      }
      sources.push_back(payload->data());
    }
    tensors_.Begin(participants);
    std::string reduced(tensors_.nbytes(), '\0');
    tensors_.reduction().Combine(reduced.data(), sources.data(),
                                 static_cast<int>(sources.size()),
                                 reduced.size());
    tensors_.Unpack({0, reduced.size()}, reduced.data());
    co_return Status::Ok();
  }

 private:
  const bool is_average_;
  const DataType wire_dtype_;
  WireTensors tensors_;
};

// Nobody to talk to: the result is this rank's own data, whatever the size.
class AllreduceAlone : public Collective {
 public:
  explicit AllreduceAlone(const CollectiveArguments& arguments)
      : tensors_(arguments), reduction_(arguments) {}

  Task Run(const Participants& participants) override {
    reduction_.Begin(participants);
    tensors_.ForEach(
        0, tensors_.nbytes(),
        [&](const char* input, char* output, size_t, size_t nbytes) {
          reduction_.CopyIn(output, input, nbytes);
          reduction_.Finish(output, nbytes);
        });
    co_return Status::Ok();
  }

 private:
  FusedTensors tensors_;
  Reduction reduction_;
};

}  // namespace

std::unique_ptr<Collective> MakeAllreduceDirect(
    const CollectiveArguments& arguments, Communicator&, uint64_t) {
  return std::make_unique<AllreduceDirect>(arguments);
}

std::unique_ptr<Collective> MakeAllreduceAlone(
    const CollectiveArguments& arguments, Communicator&, uint64_t) {
  return std::make_unique<AllreduceAlone>(arguments);
}

}  // namespace ring_keras
