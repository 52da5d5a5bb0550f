#include "tf_ops/runtime/operation.h"

#include <utility>

#include "tf_ops/matching/signature.h"
#include "tf_ops/runtime/matcher.h"

namespace ring_keras {
namespace {}  // namespace

Operation::Operation(Request request, UseId use, Standing standing,
                     std::shared_ptr<Member> member, NameUse& name,
                     DoneCallback done)
    : request_(std::move(request)),
      use_(std::move(use)),
      key_(KeyOf(use_)),
      standing_(standing),
      member_(std::move(member)),
      name_(name),
      communicator_(member_->communicator),
      done_(std::move(done)) {}

void Operation::Start() {
  task_.emplace(Run());
  task_->Start();
}

Task Operation::Run() {
  const bool taken_over = stage_ == Stage::kPosted;
  if (!taken_over && !IsMyTurn()) {
    co_await communicator_->Until([this] { return IsMyTurn(); });
  }
  RING_KERAS_CO_RETURN_IF_ERROR(communicator_->status());
  const Status ready = taken_over ? Status::Ok() : Prepare();
  const Participants* participants = nullptr;
  if (taken_over || HasChannel(ready)) {
    if (!taken_over) {
      Post();
      StampArrived();
    }
    const Posts& posts = name_.channel->posts();
    const bool waited = co_await communicator_->Until(
        [this, &posts] { return posts.All() || failure_.has_value(); },
        name_.channel->has_windows() ? Scheduler::Look::kIfAlone
                                     : Scheduler::Look::kNever);
    RING_KERAS_CO_RETURN_IF_ERROR(WaitStatus());
    StampMatched(posts.last_missing(), waited);
    Participants* posted = TakePosts();
    if (posted != nullptr) {
      RING_KERAS_CO_RETURN_IF_ERROR(FindWindows(posted));
    }
    participants = posted;
  }
  const bool in_channel = participants != nullptr;
  Meeting meeting;
  if (!in_channel) {
    Task announcements = MeetByAnnouncements(ready, &meeting);
    const Status met = co_await announcements;
    RING_KERAS_CO_RETURN_IF_ERROR(met);
    StampMatched(announced_last_, true);
    participants = &meeting.participants;
  }
  const bool on_device = request_.device_work != nullptr;
  if (on_device) {
    stage_ = Stage::kOrdered;
    LaunchOrder& order = communicator_->launch_order();
    order.Settle(launch_id_, LaunchTime(), *data_key_);
    co_await communicator_->Until([&] { return order.IsNext(launch_id_); });
    RING_KERAS_CO_RETURN_IF_ERROR(communicator_->status());
    // Run() queues it for the device before anything else runs here.
    PassLaunch();
  }
  stage_ = Stage::kRuns;
  record_.first_byte_at = on_device ? Now() : record_.matched_at;
  Task exchange = collective_->Run(*participants);
  Status status = co_await exchange;
  if (on_device && status.ok()) {
    stage_ = Stage::kLaunched;
    record_.released_at = Now();
    ++name_.ended;
    Task rest = collective_->Finish();
    status = co_await rest;
  }
  record_.last_byte_at =
      on_device || IsTimed(record_.nbytes) ? Now() : record_.first_byte_at;
  if (!status.ok()) {
    // The peers wait for this rank's data; whatever the reason, they must know.
    communicator_->Break(status);
  } else if (in_channel) {
    EndWindow(*participants);
    name_.channel->Finish(collective_->rounds());
  } else {
    LeaveChannel(std::move(meeting));
  }
  co_return status;
}

void Operation::StampArrived() {
  if (cuda::Range::AreShown()) {
    range_.Begin(StrCat(description(), ", ", TotalBytes(request_), " bytes"));
  }
  if (!member_->recorder.is_on()) return;
  record_.arrived_at = Now();
  // While its peers' posts are on their way.
  member_->recorder.Expect();
  if (record_.submitted_at == 0) record_.submitted_at = record_.arrived_at;
  Identify();
  if (request_.step_role == StepRole::kBegins) {
    member_->recorder.BeginStep(record_);
  }
}

void Operation::Identify() {
  // What precedes a step is none of it.
  if (request_.step_role != StepRole::kPrecedes) record_.step = use_.step;
  Identify(request_, use_.name, *communicator_, collective_.get(), &record_);
}

void Operation::Identify(const Request& request, const std::string& name,
                         const Communicator& communicator,
                         const Collective* collective,
                         CollectiveRecord* record) {
  record->nbytes = TotalBytes(request);
  record->communicator_id = communicator.id();
  record->size = communicator.size();
  record->kind = request.kind;
  if (collective != nullptr) record->algorithm = collective->algorithm();
  record->SetName(name);
}

CollectiveRecord Operation::Described() {
  if (record_.arrived_at == 0) Identify();
  return record_;
}

void Operation::StampMatched(int last_rank, bool waited) {
  if (!member_->recorder.is_on()) return;
  // Nobody was missing when this rank came.
  if (last_rank < 0) last_rank = communicator_->rank();
  record_.last_rank = communicator_->ranks()[last_rank];
  record_.matched_at = waited ? Now() : record_.arrived_at;
}

void Operation::Record(bool alone) {
  range_.End();
  if (!member_->recorder.is_on()) return;
  record_.outcome = status().code();
  if (record_.arrived_at == 0) Identify();
  const bool timed = alone && status().ok();
  record_.done_at = timed ? record_.last_byte_at : Now();
  if (record_.released_at == 0) record_.released_at = record_.done_at;
  if (alone || request_.blocks) {
    record_.awaited_at = record_.submitted_at;
  } else if (record_.awaited_at == 0 && request_.awaited_since != nullptr) {
    record_.awaited_at = request_.awaited_since->load();
  }
  member_->recorder.Add(record_, timed);
}

Status Operation::WaitStatus() const {
  RING_KERAS_RETURN_IF_ERROR(communicator_->status());
  return failure_.has_value() ? failure_->why : Status::Ok();
}

// The uses of a name take turns, from the third on: whether there is a channel
// is known when the second has ended. A use on a device leaves none, so its
// turn ends with its launch: the host runs ahead of the device. Between hosts
// it comes when those before it have been announced.
bool Operation::IsMyTurn() const {
  return use_.sequence < 2 || name_.ended == use_.sequence ||
         (request_.device_work != nullptr && name_.channel == nullptr &&
          name_.settled == use_.sequence && !communicator_->shares_memory());
}

void Operation::PassLaunch() {
  if (request_.device_work == nullptr) return;
  communicator_->launch_order().Pass(launch_id_);
}

Status Operation::Prepare() {
  RING_KERAS_RETURN_IF_ERROR(request_.able);
  RING_KERAS_RETURN_IF_ERROR(Validate(request_, communicator_->size()));
  collective_ = MakeCollective(request_, *communicator_);
  return Status::Ok();
}

bool Operation::failed_by_agreement() const {
  if (stage_ != Stage::kAnnounced || failure_.has_value()) return false;
  if (!communicator_->status().ok()) return false;
  return status().code() == StatusCode::kRankMismatch ||
         !announcements_[communicator_->rank()]->error.empty();
}

bool Operation::failed_alone() const {
  if (status().ok() || !communicator_->status().ok()) return false;
  switch (stage_) {
    case Stage::kGivenUp:
      return false;  // Its peers have heard that it does not come.
    case Stage::kAnnounced:
      return !failure_.has_value() && !failed_by_agreement();
    case Stage::kQueued:
    case Stage::kPosted:
    case Stage::kOrdered:
    case Stage::kRuns:
    case Stage::kLaunched:
      return true;
  }
  return true;
}

// To a mismatch all ranks agree, and that it is lost. Any other failure is this
// rank's alone: peers may have gone on, and read the window, and send.
bool Operation::PeersMayRun() const {
  if (stage_ == Stage::kRuns || stage_ == Stage::kLaunched) return true;
  if (!failure_.has_value()) return !communicator_->status().ok();
  return failure_->whose == Failure::Whose::kThisRank;
}

void Operation::Finish() {
  const Status& status = task_->result();
  if (stage_ != Stage::kLaunched) ++name_.ended;
  // All agree that it is not launched, or the communicator is broken.
  if (stage_ < Stage::kRuns) PassLaunch();
  if (!announced()) ++name_.settled;
  if (announced_count_ < communicator_->size() && announced()) {
    member_->matcher.Remove(key_, *this);
  }
  if (window_ != nullptr) {
    const uint32_t readers =
        PeersMayRun() ? communicator_->local_ranks().size() - 1 : 0;
    communicator_->mesh().windows().Release(window_, readers);
  }
  if (!status.ok() && PeersMayRun() && data_key_.has_value()) {
    for (int rank = 0; rank < communicator_->size(); ++rank) {
      if (rank == communicator_->rank()) continue;
      communicator_->pair(rank).Cancel(*data_key_);
    }
  }
  collective_.reset();
  DoneCallback done = std::move(done_);
  done(status);
}

bool Operation::IsMissing(int rank) const {
  switch (stage_) {
    case Stage::kQueued:
      return false;
    case Stage::kPosted:
      return name_.channel != nullptr &&
             !name_.channel->posts().HasPosted(rank);
    case Stage::kAnnounced:
      return !announcements_[rank].has_value();
    case Stage::kGivenUp:
      return !member_->steps.HasPassed(rank, use_.step);
    case Stage::kOrdered:
    case Stage::kRuns:
    case Stage::kLaunched:
      return false;
  }
  return false;
}

bool Operation::Needs(int rank) const {
  if (stage_ != Stage::kPosted) return IsMissing(rank);
  return name_.channel != nullptr && name_.channel->posts().Needs(rank);
}

// The ranks share the way, and what is ahead on it is not this operation's. All
// ranks are there, so nothing but what moves can keep it. On a slow way the
// kernel, which has taken megabytes at once, goes on sending them: what the
// peers' hosts have of that tells. The kernel is asked for no operation that is
// younger than half of what it may take.
bool Operation::HasMoved() {
  if (stage_ == Stage::kQueued) return true;
  if (stage_ != Stage::kRuns) return false;
  uint64_t moves = 1 + collective_->rounds();
  for (int rank = 0; rank < communicator_->size(); ++rank) {
    if (rank == communicator_->rank()) continue;
    const Pair& pair = communicator_->pair(rank);
    moves += pair.moves() + pair.sent().acknowledged_nbytes;
  }
  const uint64_t before = std::exchange(moves_, moves);
  return before != 0 && before != moves;
}

void Operation::TellWaiting() {
  if (stage_ != Stage::kPosted || has_told_waiting_) return;
  has_told_waiting_ = true;
  if (name_.channel != nullptr) name_.channel->TellAll();
}

std::vector<int> Operation::MissingRanks() const {
  std::vector<int> missing;
  for (int rank = 0; rank < communicator_->size(); ++rank) {
    if (IsMissing(rank)) missing.push_back(communicator_->ranks()[rank]);
  }
  return missing;
}

}  // namespace ring_keras
