#include "tf_ops/rendezvous/rank_ledger.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "tf_ops/common/status.h"
#include "tf_ops/rendezvous/limits.h"

namespace ring_keras::rendezvous {
namespace {

RankLedger::TimePoint AfterGrace(RankLedger::TimePoint now) {
  return now + std::chrono::duration_cast<Deadline::Clock::duration>(
                   std::chrono::duration<double>(kExitGraceS));
}

}  // namespace

Refusal RankLedger::Admit(int rank, const std::string& address) {
  if (rank < 0 || rank >= size()) return Refusal::kRankOutOfRange;
  Life& life = lives_[rank];
  switch (life.state) {
    case State::kConnected:
    case State::kClosed:
      return Refusal::kRankTaken;
    case State::kEnded:
      if (!life.process_end.empty()) return Refusal::kRankEnded;
      if (RemainingRank() >= 0) return Refusal::kRanksRemain;
      Restart();
      break;
    case State::kAbsent:
      break;
  }
  SetState(life, State::kConnected);
  life.name = StrCat("rank ", rank, " (at ", address, ")");
  return Refusal::kNone;
}

int RankLedger::RemainingRank() const {
  for (int rank = 0; rank < size(); ++rank) {
    const State state = lives_[rank].state;
    if (state == State::kConnected || state == State::kClosed) return rank;
  }
  return -1;
}

// Ranks whose process is no more cannot come: the others need not wait.
void RankLedger::Restart() {
  ++restarts_;
  ended_.clear();
  taken_ = 0;
  due_count_ = 0;
  connected_ranks_ = 0;
  for (int rank = 0; rank < size(); ++rank) {
    const std::string process_end = std::move(lives_[rank].process_end);
    lives_[rank] = Life();
    if (process_end.empty()) continue;
    lives_[rank].name = StrCat("rank ", rank);
    lives_[rank].process_end = process_end;
    End(rank, RankEvent::Kind::kLost,
        process_end + " and did not call init() again");
  }
}

void RankLedger::Name(int rank, const std::string& host_name, int64_t pid) {
  lives_[rank].name =
      StrCat("rank ", rank, " (host ", host_name, ", pid ", pid, ")");
}

void RankLedger::Leave(int rank, const std::string& reason) {
  End(rank, RankEvent::Kind::kLeft, "left: " + reason);
}

void RankLedger::Close(int rank, const std::string& how, bool by_rank,
                       TimePoint now) {
  Life& life = lives_[rank];
  if (life.state != State::kConnected) return;
  life.closed_by_rank = by_rank;
  SetState(life, State::kClosed);
  if (!life.process_end.empty()) {
    End(rank, RankEvent::Kind::kLost, life.how);
    return;
  }
  life.how = "died: " + how;
  SetDue(life, AfterGrace(now));
}

void RankLedger::Silence(int rank, double seconds) {
  End(rank, RankEvent::Kind::kLost,
      StrCat("has been silent for ", seconds,
             " s (RING_KERAS_HEARTBEAT_TIMEOUT_S): stopped, swapped out, or "
             "cut off"));
}

void RankLedger::ReportExit(int rank, const std::string& how, TimePoint now) {
  Life& life = lives_[rank];
  life.process_end = how;
  switch (life.state) {
    case State::kAbsent:
      life.name = StrCat("rank ", rank);
      End(rank, RankEvent::Kind::kLost, how + " before it joined the job");
      break;
    case State::kConnected:
      life.how = how;
      SetDue(life, AfterGrace(now));
      break;
    case State::kClosed:
      End(rank, RankEvent::Kind::kLost, how);
      break;
    case State::kEnded:
      break;  // The other ranks have been told; a verdict is final.
  }
}

std::vector<RankEvent> RankLedger::TakeEvents(TimePoint now) {
  for (int rank = 0; due_count_ > 0 && rank < size(); ++rank) {
    const Life& life = lives_[rank];
    if (life.due && *life.due <= now) {
      End(rank, RankEvent::Kind::kLost, std::string(life.how));
    }
  }
  std::vector<RankEvent> fresh(ended_.begin() + static_cast<long>(taken_),
                               ended_.end());
  taken_ = ended_.size();
  return fresh;
}

std::optional<RankLedger::TimePoint> RankLedger::NextDue() const {
  std::optional<TimePoint> next;
  if (due_count_ == 0) return next;
  for (const Life& life : lives_) {
    if (life.due && (!next || *life.due < *next)) next = life.due;
  }
  return next;
}

void RankLedger::End(int rank, RankEvent::Kind kind, const std::string& how) {
  Life& life = lives_[rank];
  if (life.state == State::kEnded) return;
  SetState(life, State::kEnded);
  SetDue(life, std::nullopt);
  const bool process_ended = kind == RankEvent::Kind::kLost &&
                             (life.closed_by_rank || !life.process_end.empty());
  ended_.push_back({kind, rank, StrCat(life.name, " ", how), process_ended});
}

void RankLedger::SetState(Life& life, State state) {
  connected_ranks_ -= life.state == State::kConnected ? 1 : 0;
  connected_ranks_ += state == State::kConnected ? 1 : 0;
  life.state = state;
}

void RankLedger::SetDue(Life& life, std::optional<TimePoint> due) {
  due_count_ -= life.due ? 1 : 0;
  due_count_ += due ? 1 : 0;
  life.due = due;
}

}  // namespace ring_keras::rendezvous
