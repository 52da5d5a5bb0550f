#include "tf_ops/runtime/operation.h"

#include <algorithm>
#include <utility>

#include "tf_ops/collectives/rows.h"
#include "tf_ops/matching/mismatch.h"
#include "tf_ops/matching/signature.h"

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
  Status ready = Prepare();
  const Participants* participants = nullptr;
  Participants announced;
  // To make room for others.
  if (name_.channel != nullptr && name_.channel->ended()) {
    name_.channel.reset();
  }
  if (name_.channel != nullptr && !(ready.ok() && FitsChannel())) {
    // So all announce themselves.
    name_.EndChannel();
  }
  if (name_.channel != nullptr) {
    Channel& channel = *name_.channel;
    Participant own;
    own.weight = request_.weight;
    collective_->Describe(&own);
    collective_->Prepare(channel.NextUse());
    stage_ = Stage::kPosted;
    channel.Post(SignatureOf(request_, use_.step, request_.plan), own);
    co_await communicator_->Until(
        [&] { return channel.AllPosted() || !failure_.ok(); },
        Scheduler::Look::kIfPatient);
    RING_KERAS_CO_RETURN_IF_ERROR(communicator_->status());
    RING_KERAS_CO_RETURN_IF_ERROR(failure_);
    if (channel.Agreed()) {
      participants = &channel.participants();
    } else {
      name_.channel.reset();
      collective_ = MakeCollective(request_, *communicator_, key_);
    }
  }
  if (name_.channel == nullptr) {
    const StepLedger& steps = member_->steps;
    if (use_.in_step() && steps.GaveUp(use_.step)) {
      stage_ = Stage::kGivenUp;
      co_await communicator_->Until(
          [&] { return steps.AllGaveUp(use_.step) || !failure_.ok(); });
      RING_KERAS_CO_RETURN_IF_ERROR(communicator_->status());
      RING_KERAS_CO_RETURN_IF_ERROR(failure_);
      co_return steps.why();
    }
    if (ready.ok()) ready = TakeWindow();
    stage_ = Stage::kAnnounced;
    RING_KERAS_CO_RETURN_IF_ERROR(Announce(ready));
    RING_KERAS_CO_RETURN_IF_ERROR(ready);
    co_await communicator_->Until(
        [this] { return joined_ == communicator_->size() || !failure_.ok(); });
    RING_KERAS_CO_RETURN_IF_ERROR(communicator_->status());
    RING_KERAS_CO_RETURN_IF_ERROR(failure_);
    StatusOr<Participants> matched = Match();
    RING_KERAS_CO_RETURN_IF_ERROR(matched.status());
    announced = std::move(matched.value());
    participants = &announced;
  }
  const bool on_device = request_.device_work != nullptr;
  if (on_device) {
    stage_ = Stage::kOrdered;
    co_await communicator_->Until([this] {
      return communicator_->launch_order().IsNext(launch_number());
    });
    RING_KERAS_CO_RETURN_IF_ERROR(communicator_->status());
    // Run() queues it for the device before anything else runs here.
    PassLaunch();
  }
  ran_ = true;
  Task exchange = collective_->Run(*participants);
  Status status = co_await exchange;
  if (on_device && status.ok()) {
    stage_ = Stage::kLaunched;
    PassTurn();
    Task rest = collective_->Finish();
    status = co_await rest;
  }
  if (status.ok()) {
    KeepOrEndWindow(*participants);
  } else {
    // The peers wait for this rank's data; whatever the reason, they must know.
    communicator_->Break(status);
  }
  co_return status;
}

// In shared memory the uses of a name take turns, from the third on: whether
// there is a channel is known when the second has ended. A use on a device
// leaves none, so its turn ends with its launch: the host runs ahead of the
// device.
bool Operation::IsMyTurn() const {
  return use_.sequence < 2 || !communicator_->shares_memory() ||
         name_.ended == use_.sequence;
}

void Operation::PassTurn() {
  if (!std::exchange(turn_passed_, true)) ++name_.ended;
}

uint64_t Operation::launch_number() const {
  if (announcements_.empty() || !announcements_[0].has_value()) {
    return LaunchOrder::kNoNumber;
  }
  return announcements_[0]->launch_number;
}

void Operation::PassLaunch() {
  const uint64_t number = launch_number();
  if (number == LaunchOrder::kNoNumber) return;
  if (std::exchange(launch_passed_, true)) return;
  communicator_->launch_order().Pass(number);
}

Status Operation::Prepare() {
  RING_KERAS_RETURN_IF_ERROR(request_.able);
  RING_KERAS_RETURN_IF_ERROR(Validate(request_, communicator_->size()));
  collective_ = MakeCollective(request_, *communicator_, key_);
  return Status::Ok();
}

bool Operation::FitsChannel() const {
  return !standing_.stands_in && collective_->can_repeat() &&
         *collective_->slot_nbytes() <= name_.channel->slot_nbytes();
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
  if (ready.ok() && request_.device_work != nullptr &&
      communicator_->rank() == 0) {
    own.launch_number = communicator_->launch_order().Assign();
  }
  if (window_ != nullptr) {
    Participant described;
    collective_->Describe(&described);
    own.window_offset = communicator_->mesh().windows().OffsetOf(window_);
    own.input_offset = described.input_offset;
    own.output_offset = described.output_offset;
  }
  std::string encoded = Encode(own);
  Status fits;
  if (encoded.size() > kMaxControlBytes) {
    fits = Status(StatusCode::kInvalidArgument,
                  StrCat(title(), ": ", request_.inputs.size(),
                         " tensors are too many for one request. Reduce them "
                         "in several groups."));
    own.error = fits.message();
    own.shapes.clear();
    own.payload.clear();
    encoded = Encode(own);
  }
  for (int rank = 0; rank < communicator_->size(); ++rank) {
    if (rank == communicator_->rank()) continue;
    communicator_->pair(rank).SendControl(FrameType::kAnnouncement, key_,
                                          encoded);
  }
  Join(communicator_->rank(), std::move(own));
  member_->has_new_wait |= use_.in_step();
  return fits;
}

void Operation::Join(int rank, Announcement announcement) {
  announcements_.resize(communicator_->size());
  if (announcements_[rank].has_value()) return;
  announcements_[rank] = std::move(announcement);
  ++joined_;
}

// All ranks look at the same announcements, so all come to the same verdict
// before any data has moved.
StatusOr<Participants> Operation::Match() {
  if (auto mismatch = FindMismatch(announcements_, communicator_->ranks())) {
    return Status(StatusCode::kRankMismatch, *mismatch);
  }
  if (is_join()) {
    // A rank that has joined knows no more of the others' steps than that.
    for (const auto& announcement : announcements_) {
      member_->step = std::max(member_->step, announcement->last_step);
    }
  }
  Participants participants(communicator_->size());
  for (int rank = 0; rank < communicator_->size(); ++rank) {
    Announcement& announcement = *announcements_[rank];
    Participant& participant = participants[rank];
    if (!announcement.shapes.empty()) {
      participant.rows = RowCount(announcement.shapes[0]);
    }
    leaves_channel_ &= announcement.use.sequence > 0 && !announcement.stands_in;
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
  return participants;
}

void Operation::KeepOrEndWindow(const Participants& participants) {
  // The first use may end after the second, which leaves a channel.
  if (stage_ == Stage::kPosted) {
    name_.channel->Finish(collective_->rounds());
    return;
  }
  if (window_ == nullptr) return;
  // A rank that is in a join would end the channel at once.
  if (leaves_channel_ && collective_->can_repeat()) {
    name_.channel = std::make_unique<Channel>(*communicator_, participants,
                                              *collective_->slot_nbytes(),
                                              collective_->rounds());
    window_ = nullptr;
    return;
  }
  for (int rank : communicator_->neighbours()) {
    const Participant& participant = participants[rank];
    if (participant.window == window_) continue;
    participant.window->readers_done.fetch_add(1, std::memory_order_release);
  }
}

void Operation::Finish() {
  const Status& status = task_->result();
  PassTurn();
  // All agree that it is not launched, or the communicator is broken.
  PassLaunch();
  // To a mismatch all ranks agree, and that it is lost. Any other failure is
  // this rank's alone: peers may have gone on, and read the window, and send.
  const bool readable =
      !lost_ && (ran_ || !failure_.ok() || !communicator_->status().ok());
  if (window_ != nullptr) {
    const uint32_t readers =
        readable ? communicator_->neighbours().size() - 1 : 0;
    communicator_->mesh().windows().Release(window_, readers);
  }
  if (!status.ok() && readable && stage_ == Stage::kAnnounced) {
    for (int rank = 0; rank < communicator_->size(); ++rank) {
      if (rank == communicator_->rank()) continue;
      communicator_->pair(rank).Cancel(key_);
    }
  }
  collective_.reset();
  DoneCallback done = std::move(done_);
  done(status);
}

int Operation::unread_announcements() const {
  return stage_ == Stage::kAnnounced ? communicator_->size() - joined_ : 0;
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
