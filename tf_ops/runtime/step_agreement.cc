#include "tf_ops/runtime/step_agreement.h"

#include <algorithm>
#include <mutex>
#include <utility>

namespace ring_keras {
namespace {

constexpr char kStepAdvice[] =
    "A rank that skipped a step, or failed in the middle of one and went on, "
    "is ahead of the others; one that repeated a part is behind. Catch what a "
    "step raises on every rank or on none. All ranks give these steps up and "
    "may go on with the next.";

}  // namespace

bool StepAgreement::WillAnnounce(const UseId& use) const {
  bool will = false;
  const auto look = [&will, &use](const Operation& operation) {
    will = will || operation.use().Meets(use);
  };
  operations_.ForEach(look);
  for (const auto& operation : shared_.queue.operations()) look(*operation);
  return will;
}

bool StepAgreement::IsPast(const Member& member, const UseId& use) const {
  if (member.steps.GaveUp(use.step)) return true;
  std::lock_guard<std::mutex> lock(shared_.mutex);
  return use.step < member.step && !WillAnnounce(use);
}

void StepAgreement::OnAdopted(const Operation& operation) {
  Member& member = operation.member();
  DropPast(member, operation.use().step);
  if (std::exchange(member.has_new_wait, false)) FailLost(member);
}

void StepAgreement::DropPast(Member& member, uint64_t step) {
  if (step <= member.oldest_step) return;
  member.oldest_step = step;
  std::lock_guard<std::mutex> lock(shared_.mutex);
  matcher_.DropStepsBefore(member.communicator->id(), step,
                           [&](const Announcement& announcement) {
                             return !WillAnnounce(announcement.use);
                           });
}

void StepAgreement::FailLost(Member& member, std::optional<int> moved_on) {
  const Communicator& communicator = *member.communicator;
  // Of thousands of ranks each is looked at once, not once for each other.
  const int first = moved_on.value_or(0);
  const int end = moved_on ? first + 1 : communicator.size();
  for (auto& operation : operations_.adopted) {
    const UseId& use = operation->use();
    if (&operation->member() != &member || !use.in_step()) continue;
    if (!operation->started() || operation->ended()) continue;
    int ahead = first;
    while (ahead < end && !(operation->LacksAnnouncement(ahead) &&
                            member.steps.HasPassed(ahead, use.step))) {
      ++ahead;
    }
    if (ahead == end) continue;
    if (member.steps.GaveUp(use.step)) {
      if (member.steps.AllGaveUp(use.step)) {
        operation->Lose(member.steps.why());
      }
      continue;
    }
    const Status lost(
        StatusCode::kRankMismatch, ErrorCode::kStepDiffers,
        StrCat(operation->description(), ": step differs across ranks: rank ",
               communicator.ranks()[ahead], " is in step ",
               member.steps.StepOf(ahead), ", rank ", job_rank_, " in step ",
               use.step, ". ", kStepAdvice));
    bool is_current;
    {
      std::lock_guard<std::mutex> lock(shared_.mutex);
      is_current = use.step == member.step && !operation->is_made_up();
    }
    if (is_current) {
      const uint64_t through = std::max(use.step, member.steps.latest());
      return GiveUp(member, {through, lost.CodedMessage()});
    }
    // Of a step that this rank has left, by an error of its own.
    operation->Lose(lost);
  }
}

void StepAgreement::FailNewLostWaits() {
  for (auto& operation : operations_.adopted) {
    Member& member = operation->member();
    if (std::exchange(member.has_new_wait, false)) FailLost(member);
  }
}

void StepAgreement::GiveUp(Member& member, const GivenUp& given_up) {
  if (member.steps.GaveUp(given_up.through)) return;
  Communicator& communicator = *member.communicator;
  member.steps.OnGivenUp(communicator.rank(), given_up);
  {
    std::lock_guard<std::mutex> lock(shared_.mutex);
    member.given_up = given_up.through;
    // In a join the program takes none of these steps.
    member.reported = member.in_join;
    member.names.ForEachInSteps(
        [](const std::string&, NameUse& use) { use.EndChannelIfIdle(); });
  }
  communicator.Tell(FrameType::kGivenUp, communicator.id(), Encode(given_up));
  FailLost(member);
}

void StepAgreement::GiveUpNext(Member& member, const std::string& why,
                               const GiveUpOptions& options) {
  uint64_t through;
  {
    std::lock_guard<std::mutex> lock(shared_.mutex);
    if (options.unless_heard && member.heard) return;
    // All have to give up as much, or some would hear of it once more.
    const bool others_have = !member.reported && member.given_up > member.step;
    through =
        others_have ? member.given_up : member.NextStep() + options.steps_ahead;
  }
  GiveUp(member, {through, why});
  std::lock_guard<std::mutex> lock(shared_.mutex);
  member.reported = true;
}

void StepAgreement::OnGivenUp(Member& member, int rank,
                              const GivenUp& given_up) {
  member.steps.OnGivenUp(rank, given_up);
  GiveUp(member, given_up);
  FailLost(member);
}

void StepAgreement::BeforeEnd(const Operation& operation) {
  Member& member = operation.member();
  const Status& status = operation.status();
  if (status.ok() || operation.is_made_up()) return;
  const uint64_t step = operation.use().step;
  // All ranks end it so: the rest of the step would be in vain.
  if (operation.failed_by_agreement()) {
    const bool own = status.code() != StatusCode::kRankMismatch;
    GiveUp(member,
           {step, own ? StrCat(Prefix(ErrorCode::kCannotTakePart),
                               operation.description(), ": rank ", job_rank_,
                               " cannot take part: ", status.message())
                      : status.CodedMessage()});
  }
  if (operation.departs()) return GiveUpWhatFollows(member, operation);
  std::lock_guard<std::mutex> lock(shared_.mutex);
  if (step < member.step || step > member.given_up) return;
  member.heard = true;
  member.reported |= step == member.step;
}

void StepAgreement::GiveUpWhatFollows(Member& member,
                                      const Operation& departed) {
  // What has begun since then is told of in the same step again.
  if (departed.was_given_up()) return;
  if (!member.steps.GaveUp(departed.use().step)) return;
  uint64_t through;
  {
    std::lock_guard<std::mutex> lock(shared_.mutex);
    through = std::max(member.step + 1, member.given_up);
  }
  GiveUp(member, {through, departed.status().CodedMessage()});
}

void StepAgreement::AfterEnd(Operation& ended) {
  if (!ended.member().steps.GaveUp(ended.use().step)) return;
  std::lock_guard<std::mutex> lock(shared_.mutex);
  ended.name_use().EndChannelIfIdle();
}

}  // namespace ring_keras
