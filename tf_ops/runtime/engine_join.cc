// A rank that is in a join takes part in its peers' collectives all the same.
#include <algorithm>
#include <utility>

#include "tf_ops/runtime/engine.h"
#include "tf_ops/runtime/stand_in.h"

namespace ring_keras {

// From here on the peers must announce what they enter: this rank's own thread
// will post in no channel.
void Engine::BeginJoin(std::unique_ptr<Operation> operation) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto found = communicators_.find(operation->communicator().id());
  if (found == communicators_.end()) {  // Removed meanwhile.
    lock.unlock();
    return Adopt(std::move(operation));
  }
  Joining& joining = joins_.emplace_back();
  joining.member = found->second;
  joining.operation = operation.get();
  joining.waiting = std::move(operation);
  Member& member = *joining.member;
  member.names.ForEach(
      [](const std::string&, NameUse& use) { use.EndChannelIfIdle(); });
}

bool Engine::ServeJoins() {
  bool progress = false;
  for (Joining& joining : joins_) {
    progress |= AnswerPeers(joining);
    if (joining.waiting != nullptr) progress |= AnnounceJoin(joining);
  }
  return progress;
}

bool Engine::AnswerPeers(const Joining& joining) {
  // Those of ranks that have left this join wait until this one has, too.
  std::vector<Announcement> peers =
      matcher_.FirstKept([&](const Announcement& peer) {
        return peer.use.communicator_id == joining.member->communicator->id() &&
               peer.joins == joining.member->joins &&
               peer.kind != CollectiveKind::kJoin;
      });
  std::sort(peers.begin(), peers.end(), [](const auto& a, const auto& b) {
    return a.use.step < b.use.step;
  });
  bool progress = false;
  for (const Announcement& peer : peers) {
    std::unique_ptr<Operation> made = MakeUp(joining, peer);
    if (made == nullptr) continue;
    Adopt(std::move(made));
    joining.operation->BeginStandIn();
    progress = true;
  }
  // To wait is its purpose, as long as the peers go on.
  if (progress) {
    joining.operation->Watch(Clock::now(), options_.stall_warning_s);
  }
  return progress;
}

std::unique_ptr<Operation> Engine::MakeUp(const Joining& joining,
                                          const Announcement& peer) {
  const std::shared_ptr<Member>& member = joining.member;
  UseId use = peer.use;
  NameUse* name = nullptr;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    name = &member->names.Of(use.name, use.in_step());
    // An operation of this rank's own is still to meet it.
    if (name->settled != name->next_sequence) return nullptr;
    if (use.in_step() && use.step <= name->last_step) return nullptr;
    use.sequence = name->next_sequence++;
    name->last_step = use.step;
    member->step = std::max(member->step, use.step);
    ++active_;
  }
  const Communicator& communicator = *member->communicator;
  StandIn made = MakeStandIn(peer, communicator.rank(), communicator.size());
  return std::make_unique<Operation>(std::move(made.request), std::move(use),
                                     Operation::Standing{member->joins, true},
                                     member, *name, std::move(made.done));
}

// Behind all that this rank has entered: so no use of a name is announced after
// the join, and when all ranks have announced theirs, each has met all uses.
bool Engine::AnnounceJoin(Joining& joining) {
  const Communicator* communicator = joining.member->communicator.get();
  for (const auto& operation : operations_) {
    if (&operation->communicator() == communicator && !operation->stands_in()) {
      return false;
    }
  }
  Adopt(std::move(joining.waiting));
  return true;
}

Engine::Joining* Engine::JoiningOn(const Communicator& communicator) {
  for (Joining& joining : joins_) {
    if (joining.member->communicator.get() == &communicator) return &joining;
  }
  return nullptr;
}

void Engine::AfterJoinedUse(const Joining& joining, Operation& ended) {
  joining.operation->Watch(Clock::now(), options_.stall_warning_s);
  if (ended.stands_in()) joining.operation->EndStandIn();
  std::lock_guard<std::mutex> lock(mutex_);
  ended.name_use().EndChannelIfIdle();
}

void Engine::FinishJoin(const Operation& operation) {
  Joining* joining = JoiningOn(operation.communicator());
  if (joining == nullptr) return;
  std::lock_guard<std::mutex> lock(mutex_);
  joining->member->in_join = false;
  ++joining->member->joins;
  joins_.erase(joins_.begin() + (joining - joins_.data()));
}

}  // namespace ring_keras
