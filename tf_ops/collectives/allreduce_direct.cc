#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tf_ops/collectives/algorithms.h"
#include "tf_ops/collectives/wire_tensors.h"

namespace ring_keras {
namespace {

class AllreduceDirect : public Collective {
 public:
  AllreduceDirect(const CollectiveArguments& arguments,
                  const Communicator& communicator)
      : size_(communicator.size()),
        is_average_(arguments.reduce_op == ReduceOp::kAverage),
        wire_dtype_(arguments.wire_dtype.value_or(arguments.dtype)),
        tensors_(arguments) {}

  // Posts hand on what they have gathered.
  bool can_repeat() const override {
    return size_ * tensors_.nbytes() <= kMaxGatheredBytes;
  }

  std::string Payload() override {
    std::string payload(tensors_.nbytes(), '\0');
    tensors_.Pack({0, payload.size()}, payload.data());
    return payload;
  }

  Task Run(const Participants& participants) override {
    std::optional<double> share;
    if (is_average_) share = Weighting(participants).share;
    std::vector<std::string> weighted(share.has_value() ? participants.size()
                                                        : 0);
    std::vector<const void*> sources;
    sources.reserve(participants.size());
    for (size_t rank = 0; rank < participants.size(); ++rank) {
      std::string_view payload = participants[rank].payload;
      if (payload.size() != tensors_.nbytes()) {
        co_return Status(
            StatusCode::kInternal, ErrorCode::kOtherVersion,
            StrCat("a rank sent ", payload.size(), " of ", tensors_.nbytes(),
                   " bytes. Is the same ring_keras installed on every host?"));
      }
      if (share.has_value()) {
        // Unknown when the payload was packed.
        weighted[rank].resize(payload.size());
        Scale(wire_dtype_, weighted[rank].data(), payload.data(),
              participants[rank].weight * *share,
              payload.size() / SizeOf(wire_dtype_));
        payload = weighted[rank];
      }
      sources.push_back(payload.data());
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
  static constexpr size_t kMaxGatheredBytes = kMaxControlBytes;

  const size_t size_;
  const bool is_average_;
  const DataType wire_dtype_;
  WireTensors tensors_;
};

// Nobody to talk to: the result is this rank's own data, whatever the size.
class AllreduceAlone : public Collective {
 public:
  AllreduceAlone(const CollectiveArguments& arguments,
                 Communicator& communicator)
      : communicator_(communicator),
        tensors_(arguments),
        reduction_(arguments) {}

  Task Run(const Participants& participants) override {
    reduction_.Begin(participants);
    Scheduler::Turn turn;
    for (size_t at = 0; at < tensors_.nbytes(); at += kPieceBytes) {
      if (at > 0 && turn.IsOver()) {
        co_await communicator_.GiveWay();
        RING_KERAS_CO_RETURN_IF_ERROR(communicator_.status());
        turn = Scheduler::Turn();
      }
      tensors_.ForEach(
          at, std::min(at + kPieceBytes, tensors_.nbytes()),
          [&](const char* input, char* output, size_t, size_t nbytes) {
            reduction_.CopyIn(output, input, nbytes);
            reduction_.Finish(output, nbytes);
          });
    }
    co_return Status::Ok();
  }

 private:
  static constexpr size_t kPieceBytes = size_t{1} << 20;

  Communicator& communicator_;
  FusedTensors tensors_;
  ScaledReduction reduction_;
};

}  // namespace

std::unique_ptr<Collective> MakeAllreduceDirect(
    const CollectiveArguments& arguments, Communicator& communicator) {
  return std::make_unique<AllreduceDirect>(arguments, communicator);
}

std::unique_ptr<Collective> MakeAllreduceAlone(
    const CollectiveArguments& arguments, Communicator& communicator) {
  return std::make_unique<AllreduceAlone>(arguments, communicator);
}

}  // namespace ring_keras
