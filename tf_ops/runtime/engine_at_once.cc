// Calls that end before anybody would have to drive.
//
// A thread that makes a RepeatedCall holds the mutex from its first look to the
// end of the collective, for some microseconds at most. Why that is as good as
// an Operation:
// 1. It begins only where nobody drives and nothing is under way, so while it
//    holds the mutex it alone touches what is the driver's (engine_drive.cc).
// 2. It begins only where an Operation would find no reason to fail: no news,
//    no rank that has gone, no break to be carried out, a communicator that
//    works, an idle name with a channel that keeps windows. What comes
//    meanwhile is news for whoever drives next: as if it had come later.
// 3. It posts the signature that an Operation would post, and reads what the
//    others have posted before it reads anything else. If they differ, or are
//    not all there within a moment, it leaves an Operation that has posted, and
//    has used its name: which no other thread can see before it sees that.
// 4. What is counted is counted as Accept(), Operation::Finish() and its
//    destructor do.
#include <utility>

#include "tf_ops/cuda/ranges.h"
#include "tf_ops/matching/signature.h"
#include "tf_ops/runtime/communicator_id.h"
#include "tf_ops/runtime/engine.h"

namespace ring_keras {

bool Engine::Recall(RepeatedCall& call, Member& member) {
  RepeatedCall::Found& found = call.found_;
  Communicator& communicator = *member.communicator;
  if (found.engine != number_ || found.forgotten != member.names.forgotten() ||
      found.tunings != communicator.tunings()) {
    found.name = &member.names.Of(call.request().name, /*in_step=*/false);
    found.collective = nullptr;
    found.engine = number_;
    found.forgotten = member.names.forgotten();
    found.tunings = communicator.tunings();
  }
  const NameUse& name = *found.name;
  if (name.channel == nullptr || name.channel->ended() ||
      !name.channel->has_windows() || !name.IsIdle()) {
    return false;
  }
  if (found.collective == nullptr) {
    // An Operation has used the channel, so the arguments are valid.
    if (!Validate(call.request(), communicator.size()).ok()) return false;
    found.collective = MakeCollective(call.request(), communicator);
    found.slot_nbytes = found.collective->slot_nbytes().value_or(0);
    found.signature = SignatureOf(call.request(), 0, call.request().plan);
    found.record = CollectiveRecord();
    Operation::Identify(call.request(), call.request().name, communicator,
                        found.collective.get(), &found.record);
  }
  return found.collective->can_run_at_once() &&
         found.slot_nbytes <= name.channel->slot_nbytes();
}

bool Engine::RunAtOnce(RepeatedCall& call, std::unique_ptr<BegunCall>* begun) {
  std::unique_lock<std::mutex> lock(shared_.mutex, std::try_to_lock);
  if (!lock.owns_lock()) return false;
  if (shared_.active != 0 || driving_ || cuda::Range::AreShown() ||
      shared_.queue.has_news().load(std::memory_order_relaxed) ||
      progress_.any_gone()) {
    return false;
  }
  const auto at =
      shared_.members.find(LocalCommunicatorId(call.request().communicator_id));
  if (at == shared_.members.end() || at->second == nullptr) return false;
  Member& member = *at->second;
  Communicator& communicator = *member.communicator;
  if (member.in_join || !communicator.status().ok()) return false;
  if (!Recall(call, member)) return false;

  RepeatedCall::Found& found = call.found_;
  NameUse& name = *found.name;
  Channel& channel = *name.channel;
  const WindowUse window = channel.NextUse();
  if (!window.first_slot_is_free) return false;
  Collective& collective = *found.collective;
  collective.Renew();
  Participant own;
  own.weight = call.request().weight;
  collective.Describe(&own);
  collective.Prepare(window);
  channel.Post(found.signature, own);
  const uint64_t sequence = name.next_sequence++;
  name.used_lately = true;
  name.last_step = 0;
  ++shared_.entered;
  // Of this use: what is kept has no moments.
  CollectiveRecord record = found.record;
  record.submitted_at = record.arrived_at = Now();
  member.recorder.Expect();

  bool waited = false;
  const Posts& posts = channel.posts();
  const bool all_are_there =
      communicator.LookBriefly([&posts] { return posts.All(); }, &waited);
  if (all_are_there) {
    const int last = posts.last_missing();
    record.last_rank =
        communicator.ranks()[last < 0 ? communicator.rank() : last];
    record.matched_at = waited ? Now() : record.arrived_at;
  }
  if (!all_are_there || !posts.Agreed() ||
      !collective.RunAtOnce(channel.participants())) {
    *begun = LeaveOperation(call, at->second, sequence, record);
    return false;
  }
  channel.Finish(collective.rounds());
  ++name.ended;
  ++name.settled;
  ++name.gone;
  if (!member.recorder.is_on()) return true;
  record.first_byte_at = record.matched_at;
  record.last_byte_at =
      Operation::IsTimed(record.nbytes) ? Now() : record.first_byte_at;
  record.released_at = record.done_at = record.last_byte_at;
  record.awaited_at = record.submitted_at;
  member.recorder.Add(record, /*alone=*/true);
  return true;
}

std::unique_ptr<BegunCall> Engine::LeaveOperation(
    RepeatedCall& call, const std::shared_ptr<Member>& member,
    uint64_t sequence, const CollectiveRecord& record) noexcept {
  auto begun = std::make_unique<BegunCall>();
  RepeatedCall::Found& found = call.found_;
  Request request = call.request();
  request.blocks = true;
  request.communicator_id = LocalCommunicatorId(request.communicator_id);
  UseId use;
  use.communicator_id = request.communicator_id;
  use.name = request.name;
  use.sequence = sequence;
  begun->operation = std::make_unique<Operation>(
      std::move(request), std::move(use), Operation::Standing{member->joins},
      member, *found.name, [begun = begun.get()](const Status& status) {
        begun->result = status;
        begun->ended.store(true, std::memory_order_release);
      });
  begun->operation->number = shared_.entered;
  begun->operation->TakeOver(std::move(found.collective), record);
  ++shared_.active;
  return begun;
}

Status Engine::Finish(std::unique_ptr<BegunCall> begun) {
  const int communicator_id = begun->operation->use().communicator_id;
  std::unique_lock<std::mutex> lock(shared_.mutex);
  Await(std::move(begun->operation), communicator_id, begun->ended, lock);
  return begun->result;
}

}  // namespace ring_keras
