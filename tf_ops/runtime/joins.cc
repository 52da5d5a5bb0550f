#include "tf_ops/runtime/joins.h"

#include <algorithm>
#include <utility>

#include "tf_ops/runtime/request_in_join.h"

namespace ring_keras {

// From here on the peers must announce what they enter: this rank's own thread
// will post in no channel.
std::unique_ptr<Operation> Joins::Begin(std::unique_ptr<Operation> join) {
  std::lock_guard<std::mutex> lock(shared_.mutex);
  const auto found = shared_.members.find(join->communicator().id());
  if (found == shared_.members.end()) return join;
  Joining& joining = joinings_.emplace_back();
  joining.member = found->second;
  joining.operation = join.get();
  joining.waiting = std::move(join);
  joining.member->names.ForEach(
      [](const std::string&, NameUse& use) { use.EndChannelIfIdle(); });
  return nullptr;
}

bool Joins::Serve(const Adopt& adopt) {
  bool progress = false;
  for (Joining& joining : joinings_) {
    progress |= AnswerPeers(joining, adopt);
    if (joining.waiting != nullptr) progress |= Announce(joining, adopt);
  }
  return progress;
}

bool Joins::AnswerPeers(const Joining& joining, const Adopt& adopt) {
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
    adopt(std::move(made));
    joining.operation->BeginMadeUp();
    progress = true;
  }
  // To wait is its purpose, as long as the peers go on.
  if (progress) {
    joining.operation->Watch(Operation::Clock::now(), stall_warning_s_);
  }
  return progress;
}

std::unique_ptr<Operation> Joins::MakeUp(const Joining& joining,
                                         const Announcement& peer) {
  const std::shared_ptr<Member>& member = joining.member;
  UseId use = peer.use;
  NameUse* name = nullptr;
  {
    std::lock_guard<std::mutex> lock(shared_.mutex);
    name = &member->names.Of(use.name, use.in_step());
    // An operation of this rank's own is still to meet it.
    if (name->settled != name->next_sequence) return nullptr;
    if (use.in_step() && use.step <= name->last_step) return nullptr;
    use.sequence = name->next_sequence++;
    name->last_step = use.step;
    member->step = std::max(member->step, use.step);
    ++shared_.active;
  }
  const Communicator& communicator = *member->communicator;
  RequestInJoin made =
      MakeRequestInJoin(peer, communicator.rank(), communicator.size(),
                        joining.operation->request());
  return std::make_unique<Operation>(std::move(made.request), std::move(use),
                                     Operation::Standing{member->joins, true},
                                     member, *name, std::move(made.done));
}

// Behind all that this rank has entered: so no use of a name is announced after
// the join, and when all ranks have announced theirs, each has met all uses.
bool Joins::Announce(Joining& joining, const Adopt& adopt) {
  const Communicator* communicator = joining.member->communicator.get();
  for (const auto& operation : operations_.adopted) {
    if (&operation->communicator() == communicator &&
        !operation->is_made_up()) {
      return false;
    }
  }
  adopt(std::move(joining.waiting));
  return true;
}

Joins::Joining* Joins::On(const Communicator& communicator) {
  for (Joining& joining : joinings_) {
    if (joining.member->communicator.get() == &communicator) return &joining;
  }
  return nullptr;
}

void Joins::Finish(const Operation& join) {
  Joining* joining = On(join.communicator());
  if (joining == nullptr) return;
  std::lock_guard<std::mutex> lock(shared_.mutex);
  joining->member->in_join = false;
  ++joining->member->joins;
  joinings_.erase(joinings_.begin() + (joining - joinings_.data()));
}

void Joins::AfterEnd(Operation& ended) {
  const Joining* joining = On(ended.communicator());
  if (joining == nullptr) return;
  joining->operation->Watch(Operation::Clock::now(), stall_warning_s_);
  if (ended.is_made_up()) joining->operation->EndMadeUp();
  std::lock_guard<std::mutex> lock(shared_.mutex);
  ended.name_use().EndChannelIfIdle();
}

}  // namespace ring_keras
