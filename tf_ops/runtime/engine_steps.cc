// Ranks that are in different steps find out, and go on together. What the
// messages mean, and why that is enough: matching/step_ledger.h.
#include <algorithm>
#include <utility>

#include "tf_ops/runtime/engine.h"

namespace ring_keras {
namespace {

constexpr char kAdvice[] =
    "A rank that skipped a step, or failed in the middle of one and went on, "
    "is ahead of the others; one that repeated a part is behind. Catch what a "
    "step raises on every rank or on none. All ranks give these steps up and "
    "may go on with the next.";

}  // namespace

bool Engine::WillAnnounce(const UseId& use) const {
  const auto is_that = [&use](const std::unique_ptr<Operation>& operation) {
    return operation != nullptr && operation->use().Meets(use);
  };
  return std::any_of(operations_.begin(), operations_.end(), is_that) ||
         std::any_of(adopting_.begin(), adopting_.end(), is_that) ||
         std::any_of(accepted_.begin(), accepted_.end(), is_that) ||
         (alone_ != nullptr && alone_->use().Meets(use));
}

bool Engine::IsPast(const Member& member, const UseId& use) const {
  if (member.steps.GaveUp(use.step)) return true;
  std::lock_guard<std::mutex> lock(mutex_);
  return use.step < member.step && !WillAnnounce(use);
}

void Engine::DropPastSteps(Member& member, uint64_t step) {
  if (step <= member.oldest_step) return;
  member.oldest_step = step;
  std::lock_guard<std::mutex> lock(mutex_);
  matcher_.DropStepsBefore(member.communicator->id(), step,
                           [&](const Announcement& announcement) {
                             return !WillAnnounce(announcement.use);
                           });
}

void Engine::FailLostSteps(Member& member) {
  const Communicator& communicator = *member.communicator;
  for (auto& operation : operations_) {
    const UseId& use = operation->use();
    if (&operation->member() != &member || !use.in_step()) continue;
    if (!operation->started() || operation->ended()) continue;
    int ahead = 0;
    while (ahead < communicator.size() &&
           !(operation->LacksAnnouncement(ahead) &&
             member.steps.HasPassed(ahead, use.step))) {
      ++ahead;
    }
    if (ahead == communicator.size()) continue;
    if (member.steps.GaveUp(use.step)) {
      if (member.steps.AllGaveUp(use.step)) {
        operation->Lose(member.steps.why());
      }
      continue;
    }
    const std::string why = StrCat(
        operation->description(), ": step differs across ranks: rank ",
        communicator.ranks()[ahead], " is in step ", member.steps.StepOf(ahead),
        ", rank ", mesh_->rank(), " in step ", use.step, ". ", kAdvice);
    bool is_current;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      is_current = use.step == member.step && !operation->stands_in();
    }
    if (is_current) {
      const uint64_t through = std::max(use.step, member.steps.latest());
      return GiveUpSteps(member, {through, why});
    }
    // Of a step that this rank has left, by an error of its own.
    operation->Lose(Status(StatusCode::kRankMismatch, why));
  }
}

void Engine::FailNewLostWaits() {
  for (auto& operation : operations_) {
    Member& member = operation->member();
    if (std::exchange(member.has_new_wait, false)) FailLostSteps(member);
  }
}

void Engine::GiveUpSteps(Member& member, GivenUp given_up) {
  if (member.steps.GaveUp(given_up.through)) return;
  Communicator& communicator = *member.communicator;
  member.steps.OnGivenUp(communicator.rank(), given_up);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    member.given_up = given_up.through;
    member.reported = false;
    member.names.ForEachInSteps(
        [](const std::string&, NameUse& use) { use.EndChannelIfIdle(); });
  }
  communicator.Tell(FrameType::kGivenUp, communicator.id(), Encode(given_up));
  FailLostSteps(member);
}

void Engine::HandleGivenUp(int job_rank, int communicator_id,
                           const std::string& bytes) {
  const std::shared_ptr<Member> member = MemberOf(communicator_id);
  if (member == nullptr || !member->communicator->Contains(job_rank)) return;
  StatusOr<GivenUp> given_up = DecodeGivenUp(bytes);
  if (!given_up.ok()) return BreakSharedWith(job_rank, given_up.status());
  member->steps.OnGivenUp(member->communicator->PlaceOf(job_rank),
                          given_up.value());
  GiveUpSteps(*member, given_up.value());
  FailLostSteps(*member);
}

void Engine::BeforeEndInStep(Operation& operation) {
  Member& member = operation.member();
  const Status& status = operation.status();
  if (status.ok() || operation.stands_in()) return;
  const uint64_t step = operation.use().step;
  // All ranks end it so: the rest of the step would be in vain.
  if (operation.failed_by_agreement()) {
    const bool own = status.code() != StatusCode::kRankMismatch;
    GiveUpSteps(
        member,
        {step, own ? StrCat(operation.description(), ": rank ", mesh_->rank(),
                            " cannot take part: ", status.message())
                   : status.message()});
  }
  std::lock_guard<std::mutex> lock(mutex_);
  member.reported |= step == member.step && step <= member.given_up;
}

void Engine::EndChannelOfGivenUp(Operation& ended) {
  if (!ended.member().steps.GaveUp(ended.use().step)) return;
  std::lock_guard<std::mutex> lock(mutex_);
  ended.name_use().EndChannelIfIdle();
}

}  // namespace ring_keras
