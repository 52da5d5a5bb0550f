#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "tf_ops/collectives/algorithms.h"
#include "tf_ops/collectives/fused_tensors.h"
#include "tf_ops/collectives/host_chain.h"
#include "tf_ops/collectives/message_exchange.h"
#include "tf_ops/collectives/partition.h"
#include "tf_ops/collectives/task_group.h"
#include "tf_ops/common/spare_memory.h"

namespace ring_keras {
namespace {

// What one root sends, cut into messages. One that lies in a single tensor goes
// from it and into it; only the others need memory.
class ChainPieces {
 public:
  ChainPieces(const FusedTensors& tensors, SpareMemory& memory)
      : tensors_(tensors),
        places_(PlacesIn(tensors)),
        packed_(memory,
                kPieceBytes * std::count_if(places_.begin(), places_.end(),
                                            [](const Place& place) {
                                              return place.is_packed();
                                            })) {
    char* next = packed_.get();
    for (Place& place : places_) {
      if (!place.is_packed()) continue;
      place.packed = next;
      next += kPieceBytes;
    }
  }

  static size_t Count(const FusedTensors& tensors) {
    return CeilDivide(tensors.nbytes(), kPieceBytes);
  }
  size_t count() const { return places_.size(); }
  size_t nbytes(size_t piece) const { return RangeOf(tensors_, piece).size(); }

  // Where the root sends it from.
  const char* Packed(size_t piece) const {
    const Place& place = places_[piece];
    if (!place.is_packed()) return place.input;
    ForEach(piece, [&](const char* input, char*, size_t offset, size_t length) {
      std::memcpy(place.packed + offset, input, length);
    });
    return place.packed;
  }
  // Where others receive it, and send it from.
  char* Received(size_t piece) const {
    const Place& place = places_[piece];
    return place.is_packed() ? place.packed : place.output;
  }
  void Unpack(size_t piece) const {
    const Place& place = places_[piece];
    if (!place.is_packed()) return;
    ForEach(piece,
            [&](const char*, char* output, size_t offset, size_t length) {
              std::memcpy(output, place.packed + offset, length);
            });
  }
  // The root's own.
  void CopyToOutput(size_t piece) const {
    ForEach(piece, [](const char* input, char* output, size_t, size_t length) {
      if (output != input) std::memcpy(output, input, length);
    });
  }

 private:
  static constexpr size_t kPieceBytes = size_t{256} << 10;

  struct Place {
    // In the tensor that it lies in; null if there are several.
    const char* input = nullptr;
    char* output = nullptr;
    char* packed = nullptr;  // Else.
    bool is_packed() const { return input == nullptr; }
  };

  static Range RangeOf(const FusedTensors& tensors, size_t piece) {
    return Piece({0, tensors.nbytes()}, kPieceBytes, piece);
  }
  template <typename Visit>
  void ForEach(size_t piece, Visit visit) const {
    const Range range = RangeOf(tensors_, piece);
    tensors_.ForEach(range.begin, range.end, visit);
  }
  static std::vector<Place> PlacesIn(const FusedTensors& tensors) {
    std::vector<Place> places(Count(tensors));
    for (size_t piece = 0; piece < places.size(); ++piece) {
      const Range range = RangeOf(tensors, piece);
      tensors.ForEach(
          range.begin, range.end,
          [&](const char* input, char* output, size_t, size_t length) {
            if (length == range.size()) places[piece] = {input, output};
          });
    }
    return places;
  }

  const FusedTensors& tensors_;
  std::vector<Place> places_;
  const SpareMemory::Loan packed_;
};

// A chain from each root through all ranks, all at once.
class BroadcastChain : public Collective {
 public:
  BroadcastChain(const CollectiveArguments& arguments,
                 Communicator& communicator)
      : communicator_(communicator),
        sent_(FusedTensors::ByRoot(arguments, communicator.size())),
        chain_(communicator) {}

  bool can_repeat() const override { return true; }

  Task Run(const Participants& participants) override {
    TaskGroup chains(communicator_);
    uint32_t tag = 0;
    for (int root = 0; root < communicator_.size(); ++root) {
      const size_t pieces = ChainPieces::Count(sent_[root]);
      if (pieces == 0) continue;
      chains.Spawn([&] {
        return root == communicator_.rank()
                   ? RunRoot(participants.key, tag)
                   : RunOther(participants.key, root, tag);
      });
      tag += static_cast<uint32_t>(pieces);
    }
    co_await chains.AllEnded();
    co_return communicator_.status();
  }

 private:
  Task RunRoot(uint64_t key, uint32_t tag) {
    const int rank = communicator_.rank();
    const ChainPieces pieces(sent_[rank], communicator_.spare_memory());
    const std::optional<int> next = chain_.Next(rank, rank);
    MessageExchange sends(communicator_, key);
    for (size_t piece = 0; next && piece < pieces.count(); ++piece) {
      sends.Send(*next, Tag(tag, piece), pieces.Packed(piece),
                 pieces.nbytes(piece));
    }
    // Its own copy is made meanwhile, a piece at a time: all else of this
    // rank's waits for it.
    for (size_t piece = 0; piece < pieces.count(); ++piece) {
      co_await sends.AllBut(pieces.count() - 1 - piece);
      if (!communicator_.status().ok()) break;
      pieces.CopyToOutput(piece);
    }
    co_await sends.Done();
    co_return communicator_.status();
  }

  Task RunOther(uint64_t key, int root, uint32_t tag) {
    const ChainPieces pieces(sent_[root], communicator_.spare_memory());
    const int previous = *chain_.Previous(root, communicator_.rank());
    const std::optional<int> next = chain_.Next(root, communicator_.rank());
    MessageExchange sends(communicator_, key);
    MessageExchange receives(communicator_, key);
    for (size_t piece = 0; piece < pieces.count(); ++piece) {
      receives.Receive(previous, Tag(tag, piece), pieces.Received(piece),
                       pieces.nbytes(piece));
    }
    for (size_t piece = 0; piece < pieces.count(); ++piece) {
      co_await receives.AllBut(pieces.count() - 1 - piece);
      if (!communicator_.status().ok()) break;
      if (next) {
        sends.Send(*next, Tag(tag, piece), pieces.Received(piece),
                   pieces.nbytes(piece));
      }
      pieces.Unpack(piece);
    }
    co_await receives.Done();
    co_await sends.Done();
    co_return communicator_.status();
  }

  static uint32_t Tag(uint32_t first, size_t piece) {
    return first + static_cast<uint32_t>(piece);
  }

  Communicator& communicator_;
  const std::vector<FusedTensors> sent_;  // By each rank.
  const HostChain chain_;
};

}  // namespace

std::unique_ptr<Collective> MakeBroadcastChain(
    const CollectiveArguments& arguments, Communicator& communicator) {
  return std::make_unique<BroadcastChain>(arguments, communicator);
}

}  // namespace ring_keras
