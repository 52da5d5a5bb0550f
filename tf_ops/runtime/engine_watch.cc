// How the engine notices that peers are late, gone, or silent.
#include <algorithm>
#include <chrono>

#include "tf_ops/common/descriptors.h"
#include "tf_ops/common/logging.h"
#include "tf_ops/runtime/engine.h"

namespace ring_keras {
namespace {

constexpr double kWatchIntervalS = 0.05;
constexpr std::chrono::seconds kPeerCheckInterval(1);
// How long after a rank has left its last bytes may take to arrive.
constexpr double kLeftGraceS = 2.0;
// The same for its last words, where others pass them on.
constexpr double kRelayGraceS = 5.0;
// Peers that have not left may send without end.
constexpr int kMaxReadTurns = 64;
// Of thousands of ranks, each with what it waits for, a warning names a few.
constexpr size_t kMostNamed = 16;

std::string JoinRanks(const std::vector<int>& ranks) {
  std::string text = "{";
  for (size_t i = 0; i < std::min(ranks.size(), kMostNamed); ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
  }
  if (ranks.size() > kMostNamed) {
    text += StrCat(" and ", ranks.size() - kMostNamed, " more");
  }
  return text + "}";
}

}  // namespace

void Engine::HandleLost(const RankEvent& event) {
  BreakSharedWith(event.rank, Status(StatusCode::kPeerLost, event.description));
}

void Engine::BreakSharedWith(int job_rank, const Status& why) {
  WriteDump(DumpCause::kOther, why.message(), Asker::kEngine);
  lost_.emplace(job_rank, why);
  for (auto& operation : operations_) {
    Communicator& communicator = operation->communicator();
    if (job_rank < 0 || communicator.Contains(job_rank)) {
      communicator.Break(why);
    }
  }
}

void Engine::FailWaitsForLeft() {
  bool moved = true;
  for (int turn = 0; turn < kMaxReadTurns && moved; ++turn) {
    moved = mesh_->Pump();
  }
  if (moved) return;  // What it sent last may still be there to read.
  for (auto& operation : operations_) {
    // The last that a rank sent may say why it left.
    if (!operation->communicator().status().ok()) continue;
    for (int rank : operation->MissingRanks()) {
      const auto left = left_.find(rank);
      if (left == left_.end() || operation->ended()) continue;
      const auto& [event, since] = left->second;
      const Pair& pair = mesh_->pair(rank);
      // Of these WatchConnections() speaks.
      if (pair.failed_by_network()) continue;
      const Communicator& communicator = operation->communicator();
      const double left_for_s =
          std::chrono::duration<double>(Clock::now() - since).count();
      const bool drained = communicator.HearsFrom(communicator.PlaceOf(rank))
                               ? mesh_->SharesMemoryWith(rank) ||
                                     pair.closed() || left_for_s > kLeftGraceS
                               : left_for_s > kRelayGraceS;
      if (!drained) continue;
      operation->Fail(
          Status(StatusCode::kPeerLost,
                 StrCat(event.description, "; ", operation->description(),
                        " still waits for it. Every rank must make the same "
                        "collective calls before it ends.")));
    }
    FailIfCutOff(*operation);
  }
}

// What others said may have been on its way over a rank that has left, which
// had said its own.
void Engine::FailIfCutOff(Operation& operation) {
  const Communicator& communicator = operation.communicator();
  if (communicator.connects_all() || operation.ended()) return;
  const std::vector<int> missing = operation.MissingRanks();
  if (missing.empty()) return;
  for (const auto& [rank, left] : left_) {
    const auto& [event, since] = left;
    const double left_for_s =
        std::chrono::duration<double>(Clock::now() - since).count();
    if (!communicator.Contains(rank) || left_for_s <= kRelayGraceS) continue;
    return operation.Fail(Status(
        StatusCode::kPeerLost,
        StrCat(event.description, "; ", operation.description(),
               " still waits for ranks ", JoinRanks(missing),
               ". Every rank must make the same collective calls before it "
               "ends.")));
  }
}

void Engine::Watch() {
  ++watches_;
  const Clock::time_point now = Clock::now();
  next_watch_ = now + std::chrono::duration_cast<Clock::duration>(
                          std::chrono::duration<double>(kWatchIntervalS));
  LookAround();
  EndLinksToLeft(now);
  WatchConnections(now);
  if (!left_.empty()) FailWaitsForLeft();
  for (auto& operation : operations_) {
    const double age_s = operation->AgeSeconds(now);
    if (age_s > options_.collective_timeout_s) {
      const std::string why =
          StrCat(operation->description(), ": gave up after ", age_s,
                 " s waiting for ", DescribeMissing(*operation),
                 ". If slow input is expected, raise "
                 "RING_KERAS_COLLECTIVE_TIMEOUT_S.");
      WriteDump(DumpCause::kOther, why, Asker::kEngine);
      operation->communicator().Break(
          Status(StatusCode::kDeadlineExceeded, why));
    } else if (age_s > operation->next_stall_warning_s &&
               !operation->queued()) {
      WarnOfStall(*operation, age_s);
      operation->next_stall_warning_s += options_.stall_warning_s;
    }
  }
}

void Engine::EndLinksToLeft(Clock::time_point now) {
  for (const auto& [rank, left] : left_) {
    Pair& pair = mesh_->pair(rank);
    const double left_for_s =
        std::chrono::duration<double>(now - left.second).count();
    if (pair.connected() || pair.closed() || left_for_s < kLeftGraceS) continue;
    pair.FailToConnect(
        Status(StatusCode::kPeerLost, "it left before there was one"), {});
  }
}

void Engine::WatchConnections(Clock::time_point now) {
  if (now >= next_peer_check_) {
    next_peer_check_ = now + kPeerCheckInterval;
    mesh_->CheckPeers();
  }
  for (int rank = 0; rank < mesh_->size(); ++rank) {
    if (rank == mesh_->rank() || !mesh_->pair(rank).ending()) continue;
    if (lost_.count(rank) > 0) continue;
    // About a host that does not answer the store has had time to speak, and of
    // data that were changed it knows nothing. That the rank left means that it
    // has found out too.
    const bool by_network = mesh_->pair(rank).failed_by_network();
    const auto left = left_.find(rank);
    if (left != left_.end() && !by_network) {
      if (mesh_->pair(rank).closed()) FailUsesOfLeft(rank, left->second.first);
      continue;
    }
    const Clock::time_point since =
        closed_since_.emplace(rank, now).first->second;
    if (!by_network &&
        std::chrono::duration<double>(now - since).count() < kStoreVerdictS) {
      continue;
    }
    const std::string how = DescribeBrokenLink(rank);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (broken_link_.empty()) broken_link_ = how;
    }
    HandleLost(
        {RankEvent::Kind::kLost, rank, how + AdviceAbout(mesh_->pair(rank))});
  }
}

std::string Engine::AdviceAbout(const Pair& pair) const {
  if (pair.failure().code() != StatusCode::kResourceExhausted) {
    return ". Both ranks are alive as far as the launcher knows: look at the "
           "network between the two hosts.";
  }
  if (!pair.connected()) return StrCat(". ", kDescriptorAdvice);
  std::string what = "a collective that was not entered";
  for (const auto& operation : operations_) {
    if (operation->data_key() == pair.overflow_key())
      what = operation->description();
  }
  return StrCat(", the last of it for ", what,
                ". Start fewer large collectives at a time.");
}

std::string Engine::DescribeBrokenLink(int rank) {
  const Pair& pair = mesh_->pair(rank);
  const auto end = [](const std::string& title, const std::string& address) {
    return address.empty() ? title : StrCat(title, " at ", address);
  };
  const auto [own_address, other_address] = pair.addresses();
  std::string own = end(own_name(), own_address);
  std::string other = end(options_.rank_names[rank], other_address);
  if (rank < mesh_->rank()) own.swap(other);
  return StrCat("the connection between ", own, " and ", other,
                " broke: ", pair.failure().message());
}

void Engine::FailUsesOfLeft(int rank, const RankEvent& event) {
  for (auto& operation : operations_) {
    Communicator& communicator = operation->communicator();
    if (!communicator.Contains(rank) || !operation->data_key().has_value() ||
        !mesh_->pair(rank).Serves(*operation->data_key())) {
      continue;
    }
    communicator.Break(
        Status(StatusCode::kPeerLost,
               StrCat(event.description, "; ", operation->description(),
                      " had begun and still needs it.")));
  }
}

std::string Engine::DescribeChannelsAhead(const std::vector<int>& missing) {
  std::string text;
  size_t count = 0;
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [id, member] : communicators_) {
    if (member == nullptr) continue;
    const Communicator& communicator = *member->communicator;
    member->names.ForEach([&](const std::string& name, const NameUse& use) {
      if (use.channel == nullptr) return;
      for (int rank : missing) {
        if (!communicator.Contains(rank)) continue;
        if (!use.channel->IsAhead(communicator.PlaceOf(rank))) continue;
        if (++count > kMostNamed) continue;
        text += StrCat(" Rank ", rank, " waits in '", name,
                       "', which this rank has not entered.");
      }
    });
  }
  if (count > kMostNamed) {
    text += StrCat(" ", count - kMostNamed, " more are waited for so.");
  }
  return text;
}

void Engine::WarnOfStall(Operation& operation, double age_s) {
  std::string text = StrCat(operation.description(), ": waited ", age_s,
                            " s for ", DescribeMissing(operation), ".");
  const std::vector<int> missing = operation.MissingRanks();
  if (!missing.empty()) {
    text +=
        " A rank that skips a step or branches differently never enters it. If "
        "slow input is expected, raise RING_KERAS_STALL_TIMEOUT_S.";
  }
  size_t count = 0;
  matcher_.ForEachKept([&](int rank, const Announcement& peer) {
    if (!std::binary_search(missing.begin(), missing.end(), rank)) return;
    if (++count > kMostNamed) return;
    text +=
        StrCat(" Rank ", rank, " waits in ", Describe(peer.kind, peer.use.name),
               ", which this rank has not entered.");
  });
  if (count > kMostNamed) {
    text += StrCat(" ", count - kMostNamed, " more are waited for so.");
  }
  text += DescribeChannelsAhead(missing);
  Log(LogLevel::kWarning, text);
  WriteDump(DumpCause::kStall, text, Asker::kEngine);
}

std::string Engine::DescribeEarlierLaunch() const {
  for (const auto& other : operations_) {
    if (other->launch_id() != launch_order_.next()) continue;
    if (other->awaits_launch()) continue;
    return StrCat("its turn on the GPU: before it comes ", other->description(),
                  ", which waits for ", DescribeMissing(*other));
  }
  return "its turn on the GPU, which is near";
}

std::string Engine::DescribeMissing(const Operation& operation) const {
  const std::vector<int> missing = operation.MissingRanks();
  if (operation.awaits_launch()) return DescribeEarlierLaunch();
  if (operation.launched()) return "the GPU, which has been given all of it";
  if (!missing.empty()) {
    return StrCat("ranks ", JoinRanks(missing), " of ", mesh_->size());
  }
  if (operation.on_device()) {
    return "NCCL to take it on this rank's GPU: it connects, or has earlier "
           "work; NCCL_DEBUG=INFO says more";
  }
  return "data of ranks that have entered it";
}

}  // namespace ring_keras
