#include "tests/stand_in/nccl/collective.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <vector>

#include "tests/stand_in/device/memory.h"
#include "tests/stand_in/nccl/exchange.h"
#include "tests/stand_in/stand_in.h"

namespace ring_keras::stand_in {
namespace {

// Goes ahead of every message, so that ranks which differ never exchange data.
struct Header {
  int32_t kind;
  int32_t dtype;
  int32_t op;
  int32_t root;
  uint64_t count;
  // NCCL's results are undefined where ranks of one call differ in that.
  bool reads_registered;
  bool operator==(const Header&) const = default;
};

const char* At(const void* memory, size_t offset) {
  return static_cast<const char*>(memory) + offset;
}

char* At(void* memory, size_t offset) {
  return static_cast<char*>(memory) + offset;
}

std::atomic<int64_t> hanging{0};

// NCCL waits for ever where ranks' calls do not fit together.
void HangUntilAborted(Communicator& communicator) {
  ++hanging;
  communicator.WaitFor([] { return false; });
  --hanging;
}

class Performance {
 public:
  Performance(Communicator& communicator, const Call& call)
      : communicator_(communicator),
        call_(call),
        rank_(communicator.rank()),
        size_(communicator.size()),
        element_(ElementSize(call.dtype)),
        nbytes_(call.count * element_) {}

  bool Run() {
    CheckMemory();
    if (!Meet()) return false;
    switch (call_.kind) {
      case CallKind::kAllReduce:
        return AllReduce();
      case CallKind::kReduce:
        return Reduce();
      case CallKind::kReduceScatter:
        return ReduceScatter();
      case CallKind::kAllGather:
        return AllGather();
      default:
        return Broadcast();
    }
  }

 private:
  void CheckMemory() {
    const CallKind kind = call_.kind;
    const size_t whole = nbytes_ * static_cast<size_t>(size_);
    const bool is_root = rank_ == call_.root;
    if (kind != CallKind::kBroadcast || is_root) {
      CheckAccess(call_.input,
                  kind == CallKind::kReduceScatter ? whole : nbytes_,
                  NameOf(kind));
    }
    if (kind != CallKind::kReduce || is_root) {
      CheckAccess(call_.output, kind == CallKind::kAllGather ? whole : nbytes_,
                  NameOf(kind));
    }
  }

  bool Meet() {
    // Each rank has factors of its own.
    const int op = call_.is_pre_mul_sum ? kNcclFirstCustomOp : call_.op;
    const Header mine = {static_cast<int32_t>(call_.kind),
                         call_.dtype,
                         op,
                         call_.root,
                         call_.count,
                         ReadsRegistered()};
    std::vector<Header> headers(static_cast<size_t>(size_), mine);
    Exchange exchange(communicator_);
    ForPeers([&](int peer) {
      exchange.Send(peer, &mine, sizeof(mine));
      exchange.Receive(peer, &headers[peer], sizeof(mine));
    });
    if (!exchange.Finish()) return false;
    for (const Header& header : headers) {
      if (header == mine) continue;
      HangUntilAborted(communicator_);
      return false;
    }
    return true;
  }

  // Of the collectives to which every rank brings memory that we register.
  bool ReadsRegistered() const {
    return (call_.kind == CallKind::kAllReduce ||
            call_.kind == CallKind::kReduceScatter) &&
           communicator_.IsRegistered(call_.input);
  }

  // Every rank sums up one part, in order of rank, and gives it to all.
  bool AllReduce() {
    if (!ReduceParts(call_.output, [&](int rank) { return PartBegin(rank); })) {
      return false;
    }
    Exchange exchange(communicator_);
    ForPeers([&](int peer) {
      exchange.Send(peer, At(call_.output, PartBegin(rank_)), PartSize(rank_));
      exchange.Receive(peer, At(call_.output, PartBegin(peer)), PartSize(peer));
    });
    return exchange.Finish();
  }

  bool Reduce() {
    std::vector<char> sum(nbytes_);
    if (!ReduceParts(sum.data(), [&](int rank) { return PartBegin(rank); })) {
      return false;
    }
    Exchange exchange(communicator_);
    if (rank_ != call_.root) {
      exchange.Send(call_.root, &sum[PartBegin(rank_)], PartSize(rank_));
      return exchange.Finish();
    }
    ForPeers([&](int peer) {
      exchange.Receive(peer, &sum[PartBegin(peer)], PartSize(peer));
    });
    if (!exchange.Finish()) return false;
    std::memcpy(call_.output, sum.data(), nbytes_);
    return true;
  }

  bool ReduceScatter() {
    std::vector<char> sum;
    if (!SumPart(nbytes_, [&](int rank) { return nbytes_ * rank; }, &sum)) {
      return false;
    }
    std::memcpy(call_.output, sum.data(), nbytes_);
    return true;
  }

  bool AllGather() {
    std::memmove(At(call_.output, nbytes_ * rank_), call_.input, nbytes_);
    Exchange exchange(communicator_);
    ForPeers([&](int peer) {
      exchange.Send(peer, At(call_.output, nbytes_ * rank_), nbytes_);
      exchange.Receive(peer, At(call_.output, nbytes_ * peer), nbytes_);
    });
    return exchange.Finish();
  }

  bool Broadcast() {
    Exchange exchange(communicator_);
    if (rank_ == call_.root) {
      ForPeers([&](int peer) { exchange.Send(peer, call_.input, nbytes_); });
      if (call_.output != call_.input) {
        std::memcpy(call_.output, call_.input, nbytes_);
      }
    } else {
      exchange.Receive(call_.root, call_.output, nbytes_);
    }
    return exchange.Finish();
  }

  // Puts this rank's part of the sum into `output`, which may be the input.
  bool ReduceParts(void* output, const std::function<size_t(int)>& begin) {
    std::vector<char> sum;
    if (!SumPart(PartSize(rank_), begin, &sum)) return false;
    if (!sum.empty()) {
      std::memcpy(At(output, begin(rank_)), sum.data(), sum.size());
    }
    return true;
  }

  // Sums up what all ranks have at begin(this rank), `part_size` bytes; sends
  // every other rank what it needs.
  bool SumPart(size_t part_size, const std::function<size_t(int)>& begin,
               std::vector<char>* sum) {
    std::vector<std::vector<char>> pieces(static_cast<size_t>(size_));
    std::vector<std::vector<char>> own(static_cast<size_t>(size_));
    for (int rank = 0; rank < size_; ++rank) {
      const size_t wanted =
          call_.kind == CallKind::kReduceScatter ? part_size : PartSize(rank);
      const char* from = At(call_.input, begin(rank));
      own[rank].assign(from, from + wanted);
      Scale(&own[rank]);
    }
    Exchange exchange(communicator_);
    ForPeers([&](int peer) {
      exchange.Send(peer, own[peer].data(), own[peer].size());
      pieces[peer].resize(part_size);
      exchange.Receive(peer, pieces[peer].data(), part_size);
    });
    if (!exchange.Finish()) return false;
    pieces[rank_] = std::move(own[rank_]);
    *sum = std::move(pieces[0]);
    for (int rank = 1; rank < size_; ++rank) {
      Combine(call_.dtype, call_.is_pre_mul_sum ? int{kNcclSum} : call_.op,
              sum->data(), pieces[rank].data(), part_size / element_);
    }
    if (call_.op == kNcclAvg && !IsFloat()) {
      Divide(call_.dtype, sum->data(), part_size / element_, size_);
    }
    return true;
  }

  // What a rank does to its values before the sum.
  void Scale(std::vector<char>* values) {
    const size_t count = values->size() / element_;
    if (call_.is_pre_mul_sum) {
      Multiply(call_.dtype, values->data(), count, call_.factor);
    } else if (call_.op == kNcclAvg && IsFloat()) {
      Multiply(call_.dtype, values->data(), count, Reciprocal());
    }
  }

  Scalar Reciprocal() const {
    Scalar one;
    one.dtype = call_.dtype;
    SetOne(call_.dtype, one.bits);
    Divide(call_.dtype, one.bits, 1, size_);
    return one;
  }

  bool IsFloat() const {
    return call_.dtype >= kNcclFloat16 && call_.dtype <= kNcclBfloat16;
  }

  size_t PartBegin(int rank) const {
    return call_.count * static_cast<size_t>(rank) / size_ * element_;
  }
  size_t PartSize(int rank) const {
    return PartBegin(rank + 1) - PartBegin(rank);
  }

  void ForPeers(const std::function<void(int)>& function) const {
    for (int step = 1; step < size_; ++step) function((rank_ + step) % size_);
  }

  Communicator& communicator_;
  const Call& call_;
  const int rank_;
  const int size_;
  const size_t element_;
  const size_t nbytes_;
};

// Pairs this rank's sends to itself with its receives from itself.
void CopyToSelf(int rank, const std::vector<Call>& calls) {
  std::vector<const Call*> sends;
  for (const Call& call : calls) {
    if (call.kind == CallKind::kSend && call.root == rank) {
      sends.push_back(&call);
    }
  }
  size_t next = 0;
  for (const Call& call : calls) {
    if (call.kind != CallKind::kReceive || call.root != rank) continue;
    if (next == sends.size()) return;
    std::memmove(call.output, sends[next++]->input,
                 call.count * ElementSize(call.dtype));
  }
}

void PerformPointToPoint(Communicator& communicator,
                         const std::vector<Call>& calls) {
  const int rank = communicator.rank();
  std::vector<Header> headers(calls.size());
  std::vector<Header> received(calls.size());
  Exchange exchange(communicator);
  for (size_t i = 0; i < calls.size(); ++i) {
    const Call& call = calls[i];
    const size_t size = call.count * ElementSize(call.dtype);
    headers[i] = {static_cast<int32_t>(CallKind::kSend), 0, 0, 0, size, false};
    received[i] = headers[i];
    const bool is_send = call.kind == CallKind::kSend;
    CheckAccess(is_send ? call.input : call.output, size, NameOf(call.kind));
    if (call.root == rank) continue;
    if (is_send) {
      exchange.Send(call.root, &headers[i], sizeof(Header));
      exchange.Send(call.root, call.input, size);
    } else {
      exchange.Receive(call.root, &received[i], sizeof(Header));
      exchange.Receive(call.root, call.output, size);
    }
  }
  CopyToSelf(rank, calls);
  if (exchange.Finish() && received != headers) {
    HangUntilAborted(communicator);
  }
}

}  // namespace

const char* NameOf(CallKind kind) {
  constexpr const char* kNames[] = {
      "ncclAllReduce", "ncclReduce", "ncclReduceScatter", "ncclAllGather",
      "ncclBroadcast", "ncclSend",   "ncclRecv"};
  return kNames[static_cast<int>(kind)];
}

bool IsPointToPoint(CallKind kind) {
  return kind == CallKind::kSend || kind == CallKind::kReceive;
}

void Perform(Communicator& communicator, const std::vector<Call>& calls) {
  std::vector<Call> point_to_point;
  for (const Call& call : calls) {
    if (IsPointToPoint(call.kind)) {
      point_to_point.push_back(call);
    } else if (!Performance(communicator, call).Run()) {
      return;
    }
  }
  if (!point_to_point.empty()) {
    PerformPointToPoint(communicator, point_to_point);
  }
}

}  // namespace ring_keras::stand_in

int64_t RingKerasStandInHanging() { return ring_keras::stand_in::hanging; }
