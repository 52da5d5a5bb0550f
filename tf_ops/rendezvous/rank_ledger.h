// Who is in the job, who has ended, and how: the one judgement that all ranks
// are told. Pure: the caller says what it saw and what time it is.
//
// A rank that has ended stays so for its generation. When nobody is left in
// one, the first that comes back begins the next.
//
// A closed connection alone does not say why a process ended, so its verdict
// waits a moment for the launcher's word. A word without a closed connection
// waits too: that it left may still be in the socket, or a forked child may
// hold the connection open after its parent died.
#ifndef RING_KERAS_RENDEZVOUS_RANK_LEDGER_H_
#define RING_KERAS_RENDEZVOUS_RANK_LEDGER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tf_ops/common/deadline.h"
#include "tf_ops/common/store.h"
#include "tf_ops/rendezvous/handshake_protocol.h"

namespace ring_keras::rendezvous {

class RankLedger {
 public:
  using TimePoint = Deadline::Clock::time_point;

  explicit RankLedger(int size) : lives_(static_cast<size_t>(size)) {}

  // Whether `rank` may join from `address`; kNone if it has joined now.
  Refusal Admit(int rank, const std::string& address);
  // A rank that keeps the generation going: the lowest; -1 if nobody is in it.
  int RemainingRank() const;
  int connected_ranks() const { return connected_ranks_; }
  // How many generations have begun after the first.
  uint64_t restarts() const { return restarts_; }
  void Name(int rank, const std::string& host_name, int64_t pid);

  // The rank left by its own will.
  void Leave(int rank, const std::string& reason);
  // Its connection ended before that. `how`: "its connection ... closed";
  // `by_rank`: it was the rank that closed it, as the end of its process does.
  void Close(int rank, const std::string& how, bool by_rank, TimePoint now);
  // Its connection is open, but nothing comes.
  void Silence(int rank, double seconds);
  // The launcher saw its process end. `how`: "was killed by SIGKILL".
  void ReportExit(int rank, const std::string& how, TimePoint now);

  // What has become certain since the last call, oldest first.
  std::vector<RankEvent> TakeEvents(TimePoint now);
  // When TakeEvents() may find something without anything new happening.
  std::optional<TimePoint> NextDue() const;

  const std::vector<RankEvent>& ended() const { return ended_; }
  int size() const { return static_cast<int>(lives_.size()); }

 private:
  enum class State { kAbsent, kConnected, kClosed, kEnded };
  struct Life {
    State state = State::kAbsent;
    std::string name;
    std::string how;  // The verdict, once it is due.
    std::string
        process_end;  // How its process ended; empty: it runs, it seems.
    bool closed_by_rank = false;
    std::optional<TimePoint> due;
  };

  void End(int rank, RankEvent::Kind kind, const std::string& how);
  void SetState(Life& life, State state);
  void SetDue(Life& life, std::optional<TimePoint> due);
  void Restart();

  std::vector<Life> lives_;
  std::vector<RankEvent> ended_;
  // So that looking for what is due, which is rare, costs nothing in between.
  int due_count_ = 0;
  int connected_ranks_ = 0;
  uint64_t restarts_ = 0;
  size_t taken_ = 0;  // How many of `ended_` TakeEvents() has given.
};

}  // namespace ring_keras::rendezvous

#endif  // RING_KERAS_RENDEZVOUS_RANK_LEDGER_H_
