#include "tf_ops/runtime/peer_watch.h"

#include <algorithm>
#include <utility>

#include "tf_ops/common/descriptors.h"
#include "tf_ops/runtime/wait_text.h"

namespace ring_keras {
namespace {

constexpr std::chrono::seconds kCheckInterval(1);
// How long after a rank has left its last bytes may take to arrive.
constexpr double kLeftGraceS = 2.0;
// The same for its last words, where others pass them on.
constexpr double kRelayGraceS = 5.0;

// What those do whose wait is in vain, unless an exception ended the other:
// then its words, which are Python's, say why.
std::string AdviceAfter(const RankEvent& left) {
  if (left.description.find(" raised ") != std::string::npos) return "";
  return " Every rank must make the same collective calls before it ends.";
}

}  // namespace

bool PeerWatch::IsLost(int rank) const {
  return std::any_of(lost_.begin(), lost_.end(),
                     [rank](const auto& lost) { return lost.first == rank; });
}

void PeerWatch::OnLost(int rank, const Status& why) {
  if (!IsLost(rank)) lost_.emplace_back(rank, why);
  for (auto& operation : operations_.adopted) {
    BreakIfShared(operation->communicator(), rank, why);
  }
}

std::vector<PeerWatch::BrokenLink> PeerWatch::FindBrokenLinks(
    Clock::time_point now) {
  EndLinksToLeft(now);
  if (now >= next_check_) {
    next_check_ = now + kCheckInterval;
    mesh_.CheckPeers();
  }
  std::vector<BrokenLink> broken;
  for (int rank = 0; rank < mesh_.size(); ++rank) {
    if (rank == mesh_.rank() || !mesh_.pair(rank).ending()) continue;
    if (IsLost(rank)) continue;
    // About a host that does not answer the store has had time to speak, and of
    // data that were changed it knows nothing. That the rank left means that it
    // has found out too.
    const bool by_network = mesh_.pair(rank).failed_by_network();
    if (LeaveOf(rank) != nullptr && !by_network) continue;
    const Clock::time_point since =
        closed_since_.emplace(rank, now).first->second;
    if (!by_network &&
        std::chrono::duration<double>(now - since).count() < kStoreVerdictS) {
      continue;
    }
    broken.push_back(
        {rank, DescribeBroken(rank), AdviceAbout(mesh_.pair(rank))});
  }
  return broken;
}

void PeerWatch::EndLinksToLeft(Clock::time_point now) {
  for (const Left& left : left_) {
    Pair& pair = mesh_.pair(left.event.rank);
    if (pair.connected() || pair.closed() ||
        left.SecondsUntil(now) < kLeftGraceS) {
      continue;
    }
    pair.FailToConnect(
        Status(StatusCode::kPeerLost, "it left before there was one"), {});
  }
}

void PeerWatch::FailUsesOfLeft() {
  for (const Left& left : left_) {
    const Pair& pair = mesh_.pair(left.event.rank);
    if (!pair.closed() || pair.failed_by_network()) continue;
    if (!IsLost(left.event.rank)) FailUsesOf(left);
  }
}

void PeerWatch::FailWhatNeedsLeft() {
  for (auto& operation : operations_.adopted) {
    if (!operation->communicator().status().ok()) continue;
    FailWaits(*operation);
    FailIfCutOff(*operation);
  }
}

void PeerWatch::FailUsesOf(const Left& left) {
  const int rank = left.event.rank;
  for (auto& operation : operations_.adopted) {
    Communicator& communicator = operation->communicator();
    if (!communicator.Contains(rank) || !operation->data_key().has_value() ||
        !mesh_.pair(rank).Serves(*operation->data_key())) {
      continue;
    }
    communicator.Break(
        Status(StatusCode::kPeerLost, ErrorCode::kRankLeft,
               StrCat(left.event.description, "; ", operation->description(),
                      " had begun and still needs it.")));
  }
}

bool PeerWatch::HasHeard(const Left& left,
                         const Communicator& communicator) const {
  const int rank = left.event.rank;
  const double left_for_s = left.SecondsUntil(Clock::now());
  if (!communicator.HearsFrom(communicator.PlaceOf(rank))) {
    return left_for_s > kRelayGraceS;
  }
  return mesh_.SharesMemoryWith(rank) || mesh_.pair(rank).closed() ||
         left_for_s > kLeftGraceS;
}

void PeerWatch::FailWaits(Operation& operation) {
  const Communicator& communicator = operation.communicator();
  if (operation.ended()) return;
  for (const Left& left : left_) {
    const int rank = left.event.rank;
    if (!communicator.Contains(rank)) continue;
    if (!operation.Needs(communicator.PlaceOf(rank))) continue;
    // Of these FindBrokenLinks() speaks.
    if (mesh_.pair(rank).failed_by_network()) continue;
    // Those that left after it may have done so because of it.
    if (!HasHeard(left, communicator)) return;
    return operation.Fail(
        Status(StatusCode::kPeerLost, ErrorCode::kRankLeft,
               StrCat(left.event.description, "; ", operation.description(),
                      " still waits for it.", AdviceAfter(left.event))));
  }
}

// What others said may have been on its way over a rank that has left, which
// had said its own.
void PeerWatch::FailIfCutOff(Operation& operation) {
  const Communicator& communicator = operation.communicator();
  if (communicator.connects_all() || operation.ended()) return;
  if (!operation.waits_for_announcements()) return;
  const std::vector<int> missing = operation.MissingRanks();
  if (missing.empty()) return;
  for (const Left& left : left_) {
    if (!communicator.Contains(left.event.rank)) continue;
    if (left.SecondsUntil(Clock::now()) <= kRelayGraceS) continue;
    return operation.Fail(
        Status(StatusCode::kPeerLost, ErrorCode::kRankLeft,
               StrCat(left.event.description, "; ", operation.description(),
                      " still waits for ", JoinRanks(missing), ".",
                      AdviceAfter(left.event))));
  }
}

std::string PeerWatch::DescribeBroken(int rank) {
  const Pair& pair = mesh_.pair(rank);
  const auto end = [](const std::string& name, const std::string& address) {
    return address.empty() ? name : StrCat(name, " at ", address);
  };
  const auto [own_address, other_address] = pair.addresses();
  std::string own = end(rank_names_[mesh_.rank()], own_address);
  std::string other = end(rank_names_[rank], other_address);
  if (rank < mesh_.rank()) own.swap(other);
  return StrCat("the connection between ", own, " and ", other,
                " broke: ", pair.failure().message());
}

std::string PeerWatch::AdviceAbout(const Pair& pair) const {
  if (pair.failure().code() != StatusCode::kResourceExhausted) {
    return ". Both ranks are alive as far as the launcher knows: look at the "
           "network between the two hosts.";
  }
  if (!pair.connected()) return StrCat(". ", kDescriptorAdvice);
  std::string what = "a collective that was not entered";
  for (const auto& operation : operations_.adopted) {
    if (operation->data_key() == pair.overflow_key())
      what = operation->description();
  }
  return StrCat(", the last of it for ", what,
                ". Start fewer large collectives at a time.");
}

}  // namespace ring_keras
