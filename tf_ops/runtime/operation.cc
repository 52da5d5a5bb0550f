#include "tf_ops/runtime/operation.h"

#include <algorithm>
#include <utility>

#include "tf_ops/collectives/rows.h"
#include "tf_ops/matching/mismatch.h"
#include "tf_ops/matching/signature.h"
#include "tf_ops/runtime/matcher.h"

namespace ring_keras {

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
  if (!IsMyTurn()) {
    co_await communicator_->Until([this] { return IsMyTurn(); });
  }
  RING_KERAS_CO_RETURN_IF_ERROR(communicator_->status());
  const Status ready = Prepare();
  const Participants* participants = nullptr;
  if (HasChannel(ready)) {
    Post();
    co_await communicator_->Until(
        [this] { return name_.channel->AllPosted() || failure_.has_value(); },
        Scheduler::Look::kIfPatient);
    RING_KERAS_CO_RETURN_IF_ERROR(WaitStatus());
    participants = TakePosts();
  }
  const bool in_channel = participants != nullptr;
  Meeting meeting;
  if (!in_channel) {
    Task announcements = MeetByAnnouncements(ready, &meeting);
    const Status met = co_await announcements;
    RING_KERAS_CO_RETURN_IF_ERROR(met);
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
  Task exchange = collective_->Run(*participants);
  Status status = co_await exchange;
  if (on_device && status.ok()) {
    stage_ = Stage::kLaunched;
    ++name_.ended;
    Task rest = collective_->Finish();
    status = co_await rest;
  }
  if (!status.ok()) {
    // The peers wait for this rank's data; whatever the reason, they must know.
    communicator_->Break(status);
  } else if (in_channel) {
    name_.channel->Finish(collective_->rounds());
  } else {
    KeepOrEndWindow(std::move(meeting));
  }
  co_return status;
}

bool Operation::HasChannel(const Status& ready) {
  if (name_.channel == nullptr) return false;
  // To make room for others.
  if (name_.channel->ended()) {
    name_.channel.reset();
    return false;
  }
  if (ready.ok() && !standing_.stands_in && collective_->can_repeat() &&
      *collective_->slot_nbytes() <= name_.channel->slot_nbytes()) {
    return true;
  }
  // So all announce themselves.
  name_.EndChannel();
  return false;
}

void Operation::Post() {
  Channel& channel = *name_.channel;
  Participant own;
  own.weight = request_.weight;
  collective_->Describe(&own);
  collective_->Prepare(channel.NextUse());
  stage_ = Stage::kPosted;
  channel.Post(SignatureOf(request_, use_.step, request_.plan), own);
}

const Participants* Operation::TakePosts() {
  if (name_.channel->Agreed()) return &name_.channel->participants();
  name_.channel.reset();
  collective_ = MakeCollective(request_, *communicator_);
  return nullptr;
}

Task Operation::MeetByAnnouncements(Status ready, Meeting* meeting) {
  const StepLedger& steps = member_->steps;
  if (use_.in_step() && steps.GaveUp(use_.step)) {
    stage_ = Stage::kGivenUp;
    co_await communicator_->Until(
        [&] { return steps.AllGaveUp(use_.step) || failure_.has_value(); });
    RING_KERAS_CO_RETURN_IF_ERROR(WaitStatus());
    co_return steps.why();
  }
  if (ready.ok()) ready = TakeWindow();
  RING_KERAS_CO_RETURN_IF_ERROR(Announce(ready));
  RING_KERAS_CO_RETURN_IF_ERROR(ready);
  co_await communicator_->Until([this] {
    return announced_count_ == communicator_->size() || failure_.has_value();
  });
  RING_KERAS_CO_RETURN_IF_ERROR(WaitStatus());
  co_return Match(meeting);
}

Status Operation::WaitStatus() const {
  RING_KERAS_RETURN_IF_ERROR(communicator_->status());
  return failure_.has_value() ? failure_->why : Status::Ok();
}

// In shared memory the uses of a name take turns, from the third on: whether
// there is a channel is known when the second has ended. A use on a device
// leaves none, so its turn ends with its launch: the host runs ahead of the
// device.
bool Operation::IsMyTurn() const {
  return use_.sequence < 2 || !communicator_->shares_memory() ||
         name_.ended == use_.sequence;
}

uint64_t Operation::LaunchTime() const {
  uint64_t time = LaunchOrder::kNoTime;
  for (const auto& announcement : announcements_) {
    time = std::max(time, announcement->launch_time);
  }
  return time;
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

Status Operation::TakeWindow() {
  if (const auto slot_nbytes = collective_->slot_nbytes()) {
    WindowAllocator& windows = communicator_->mesh().windows();
    StatusOr<Window*> window = windows.Allocate(kWindowSlots * *slot_nbytes);
    RING_KERAS_RETURN_IF_ERROR(window.status());
    window_ = window.value();
    WindowUse use;
    use.window = window_;
    use.slot_nbytes = *slot_nbytes;
    collective_->Prepare(use);
  } else {
    collective_->Prepare({});
  }
  return Status::Ok();
}

Status Operation::Announce(const Status& ready) {
  Announcement own = MakeAnnouncement(request_, use_);
  own.plan = request_.plan;
  own.joins = standing_.joins;
  own.stands_in = standing_.stands_in;
  // No step begins while this rank is in the join.
  if (is_join()) own.last_step = std::max(member_->step, member_->given_up);
  own.error = ready.message();
  if (ready.ok()) own.payload = collective_->Payload();
  if (communicator_->rank() == 0) {
    own.number = ++member_->numbers;
  }
  if (ready.ok() && request_.device_work != nullptr) {
    const LaunchOrder::Entry entry = communicator_->launch_order().Enter();
    launch_id_ = entry.id;
    own.launch_time = entry.time;
  }
  if (window_ != nullptr) {
    Participant described;
    collective_->Describe(&described);
    own.window_offset = communicator_->mesh().windows().OffsetOf(window_);
    own.input_offset = described.input_offset;
    own.output_offset = described.output_offset;
  }
  std::string encoded;
  const Status fits = EncodeOwn(own, &encoded);
  for (int rank = 0; rank < communicator_->size(); ++rank) {
    if (rank == communicator_->rank()) continue;
    communicator_->pair(rank).SendControl(FrameType::kAnnouncement, key_,
                                          encoded);
  }
  announcements_.resize(communicator_->size());
  ++name_.settled;
  OnAnnounced(communicator_->mesh().rank(), std::move(own));
  member_->matcher.Add(key_, *this);
  stage_ = Stage::kAnnounced;
  member_->has_new_wait |= use_.in_step();
  return fits;
}

Status Operation::EncodeOwn(Announcement& own, std::string* encoded) const {
  *encoded = Encode(own);
  if (encoded->size() <= kMaxControlBytes) return Status::Ok();
  const Status too_long(
      StatusCode::kInvalidArgument,
      StrCat(title(), ": ", request_.inputs.size(),
             " tensors are too many for one request. Reduce them in several "
             "groups."));
  own.error = too_long.message();
  own.shapes.clear();
  own.payload.clear();
  *encoded = Encode(own);
  return too_long;
}

void Operation::OnAnnounced(int job_rank, Announcement announcement) {
  if (!announcement.use.Meets(use_)) {
    const std::string other =
        Describe(announcement.kind, announcement.use.name);
    return communicator_->Break(
        Status(StatusCode::kInternal,
               StrCat(title(), " and ", other, " of rank ", job_rank,
                      " have the same number. Rename one of them.")));
  }
  if (!communicator_->Contains(job_rank)) return;
  const int rank = communicator_->PlaceOf(job_rank);
  if (rank == 0) data_key_ = DataKeyOf(use_, announcement.number);
  announcements_[rank] = std::move(announcement);
  ++announced_count_;
}

// All ranks look at the same announcements, so all come to the same verdict
// before any data has moved.
Status Operation::Match(Meeting* meeting) {
  if (auto mismatch = FindMismatch(announcements_, communicator_->ranks())) {
    return Status(StatusCode::kRankMismatch, *mismatch);
  }
  if (is_join()) {
    // A rank that has joined knows no more of the others' steps than that.
    for (const auto& announcement : announcements_) {
      member_->step = std::max(member_->step, announcement->last_step);
    }
  }
  Participants& participants = meeting->participants;
  participants.resize(communicator_->size());
  participants.key = *data_key_;
  meeting->leaves_channel = true;
  for (int rank = 0; rank < communicator_->size(); ++rank) {
    Announcement& announcement = *announcements_[rank];
    Participant& participant = participants[rank];
    if (!announcement.shapes.empty()) {
      participant.rows = RowCount(announcement.shapes[0]);
    }
    meeting->leaves_channel &=
        announcement.use.sequence > 0 && !announcement.stands_in;
    participant.splits = std::move(announcement.splits);
    participant.weight = announcement.weight;
    participant.input_offset = announcement.input_offset;
    participant.output_offset = announcement.output_offset;
    participant.payload = std::move(announcement.payload);
    if (window_ == nullptr || !communicator_->IsNeighbour(rank)) continue;
    participant.window = rank == communicator_->rank()
                             ? window_
                             : WindowAt(communicator_->segment(rank),
                                        announcement.window_offset);
    if (participant.window == nullptr) {
      return Status(StatusCode::kInternal,
                    StrCat(title(), ": rank ", communicator_->ranks()[rank],
                           " announced a window outside its shared memory"));
    }
  }
  return Status::Ok();
}

void Operation::KeepOrEndWindow(Meeting meeting) {
  if (window_ == nullptr) return;
  // A rank that is in a join would end the channel at once.
  if (meeting.leaves_channel && collective_->can_repeat()) {
    name_.channel = std::make_unique<Channel>(
        *communicator_, std::move(meeting.participants),
        *collective_->slot_nbytes(), collective_->rounds());
    window_ = nullptr;
    return;
  }
  for (int rank : communicator_->neighbours()) {
    const Participant& participant = meeting.participants[rank];
    if (participant.window == window_) continue;
    participant.window->readers_done.fetch_add(1, std::memory_order_release);
  }
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
        PeersMayRun() ? communicator_->neighbours().size() - 1 : 0;
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
      return name_.channel != nullptr && !name_.channel->HasPosted(rank);
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

std::vector<int> Operation::MissingRanks() const {
  std::vector<int> missing;
  for (int rank = 0; rank < communicator_->size(); ++rank) {
    if (IsMissing(rank)) missing.push_back(communicator_->ranks()[rank]);
  }
  return missing;
}

}  // namespace ring_keras
