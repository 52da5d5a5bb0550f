// How an operation meets its peers: in the channel that earlier uses of its
// name have left, or by announcements; and what it leaves for the next.
#include <algorithm>
#include <utility>

#include "tf_ops/collectives/rows.h"
#include "tf_ops/matching/mismatch.h"
#include "tf_ops/matching/signature.h"
#include "tf_ops/runtime/matcher.h"
#include "tf_ops/runtime/operation.h"

namespace ring_keras {

bool Operation::HasChannel(const Status& ready) {
  if (name_.channel == nullptr) return false;
  // To make room for others.
  if (name_.channel->ended()) {
    name_.channel.reset();
    return false;
  }
  if (ready.ok() && !standing_.is_made_up && collective_->can_repeat() &&
      HasRoom()) {
    return true;
  }
  // So all announce themselves.
  name_.EndChannel();
  return false;
}

bool Operation::HasRoom() {
  const auto slot_nbytes = collective_->slot_nbytes();
  if (!slot_nbytes.has_value()) return true;
  if (!name_.channel->has_windows()) return TakeWindow().ok();
  return *slot_nbytes <= name_.channel->slot_nbytes();
}

void Operation::Post() {
  Channel& channel = *name_.channel;
  Participant own;
  own.weight = request_.weight;
  collective_->Describe(&own);
  if (window_ == nullptr) collective_->Prepare(channel.NextUse());
  std::string payload;
  if (!channel.has_windows()) payload = collective_->Payload();
  own.payload = payload;
  stage_ = Stage::kPosted;
  channel.Post(SignatureOf(request_, use_.step, request_.plan), own);
  if (!channel.has_windows()) data_key_ = channel.posts().data_key();
}

Participants* Operation::TakePosts() {
  if (name_.channel->posts().Agreed()) return &name_.channel->participants();
  name_.channel.reset();
  data_key_.reset();
  collective_ = MakeCollective(request_, *communicator_);
  return nullptr;
}

Status Operation::FindWindows(Participants* posted) {
  if (window_ == nullptr) return Status::Ok();
  for (int rank : communicator_->local_ranks()) {
    Participant& participant = (*posted)[rank];
    auto window = ShownBy(rank, DecodeWindowOffset(participant.payload));
    RING_KERAS_RETURN_IF_ERROR(window.status());
    participant.window = window.value();
  }
  return Status::Ok();
}

StatusOr<Window*> Operation::ShownBy(int rank, uint64_t offset) const {
  if (rank == communicator_->rank()) return window_;
  Window* window = WindowAt(communicator_->segment(rank), offset);
  if (window != nullptr) return window;
  return Status(StatusCode::kInternal,
                StrCat(description(), ": rank ", communicator_->ranks()[rank],
                       " announced a window outside its shared memory"));
}

Task Operation::MeetByAnnouncements(Status ready, Meeting* meeting) {
  ReadAnnounced();
  RING_KERAS_CO_RETURN_IF_ERROR(communicator_->status());
  const StepLedger& steps = member_->steps;
  if (use_.in_step() && steps.GaveUp(use_.step)) {
    stage_ = Stage::kGivenUp;
    co_await communicator_->Until(
        [&] { return steps.AllGaveUp(use_.step) || failure_.has_value(); });
    RING_KERAS_CO_RETURN_IF_ERROR(WaitStatus());
    co_return steps.why();
  }
  if (ready.ok()) ready = TakeWindow();
  StampArrived();
  RING_KERAS_CO_RETURN_IF_ERROR(Announce(ready));
  RING_KERAS_CO_RETURN_IF_ERROR(ready);
  co_await communicator_->Until([this] {
    return announced_count_ == communicator_->size() || failure_.has_value();
  });
  RING_KERAS_CO_RETURN_IF_ERROR(WaitStatus());
  co_return Match(meeting);
}

// What peers have announced before this rank must not look as if it came after:
// a rank that is late would seem to wait for those that wait for it. As
// wherever messages are read, there is no going on without memory.
void Operation::ReadAnnounced() noexcept { communicator_->mesh().Pump(); }

Status Operation::TakeWindow() {
  if (const auto slot_nbytes = collective_->slot_nbytes()) {
    // It may have one, which it has shown to peers that disagreed.
    if (window_ == nullptr) {
      WindowAllocator& windows = communicator_->mesh().windows();
      StatusOr<Window*> window = windows.Allocate(WindowBytes(*slot_nbytes));
      RING_KERAS_RETURN_IF_ERROR(window.status());
      window_ = window.value();
    }
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
  own.is_made_up = standing_.is_made_up;
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
  communicator_->Tell(FrameType::kAnnouncement, key_, encoded);
  announcements_.resize(communicator_->size());
  ++name_.settled;
  OnAnnounced(communicator_->mesh().rank(), std::move(own));
  member_->matcher.Add(key_, *this);
  // Whoever has announced it by now came before this rank.
  announced_last_ = communicator_->rank();
  stage_ = Stage::kAnnounced;
  member_->has_new_wait |= use_.in_step();
  return fits;
}

Status Operation::EncodeOwn(Announcement& own, std::string* encoded) const {
  *encoded = Encode(own);
  if (encoded->size() <= kMaxControlBytes) return Status::Ok();
  const Status too_long(
      StatusCode::kInvalidArgument, ErrorCode::kTooManyTensors,
      StrCat(description(), ": ", request_.inputs.size(),
             " tensors are too many for one request. Reduce them in several "
             "groups."));
  own.error = too_long.message();
  own.shapes.clear();
  own.payload.clear();
  *encoded = Encode(own);
  return too_long;
}

void Operation::OnAnnounced(int job_rank, Announcement&& announcement) {
  if (!announcement.use.Meets(use_)) {
    const std::string other =
        Describe(announcement.kind, announcement.use.name);
    return communicator_->Break(
        Status(StatusCode::kInternal,
               StrCat(description(), " and ", other, " of rank ", job_rank,
                      " have the same number. Rename one of them.")));
  }
  if (!communicator_->Contains(job_rank)) return;
  const int rank = communicator_->PlaceOf(job_rank);
  if (rank == 0) data_key_ = DataKeyOf(use_, announcement.number);
  announcements_[rank] = std::move(announcement);
  ++announced_count_;
  announced_last_ = rank;
}

// All ranks look at the same announcements, so all find the same before any
// data has moved.
Status Operation::Match(Meeting* meeting) {
  RING_KERAS_RETURN_IF_ERROR(
      FindMismatch(announcements_, communicator_->ranks()));
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
        announcement.use.sequence > 0 && !announcement.is_made_up;
    // Posts that travel do not say whose weight is which.
    meeting->leaves_channel &=
        KeepsWindow() || announcement.weight == announcements_[0]->weight;
    participant.splits = std::move(announcement.splits);
    participant.weight = announcement.weight;
    participant.input_offset = announcement.input_offset;
    participant.output_offset = announcement.output_offset;
    participant.payload = announcement.payload;
    if (window_ == nullptr || !communicator_->IsLocal(rank)) continue;
    auto window = ShownBy(rank, announcement.window_offset);
    RING_KERAS_RETURN_IF_ERROR(window.status());
    participant.window = window.value();
  }
  return Status::Ok();
}

uint64_t Operation::LaunchTime() const {
  uint64_t time = LaunchOrder::kNoTime;
  for (const auto& announcement : announcements_) {
    time = std::max(time, announcement->launch_time);
  }
  return time;
}

void Operation::LeaveChannel(Meeting meeting) {
  // A rank that is in a join would end the channel at once.
  const bool leaves = meeting.leaves_channel && collective_->can_repeat();
  Participants& participants = meeting.participants;
  const bool keeps_windows = leaves && KeepsWindow();
  if (!keeps_windows) {
    EndWindow(participants);
    for (Participant& participant : participants) participant.window = nullptr;
  }
  if (!leaves) return;
  name_.channel = std::make_unique<Channel>(
      *communicator_, std::move(participants),
      collective_->slot_nbytes().value_or(0), collective_->rounds());
  if (keeps_windows) window_ = nullptr;
}

void Operation::EndWindow(const Participants& participants) {
  if (window_ == nullptr) return;
  for (int rank : communicator_->local_ranks()) {
    if (rank == communicator_->rank()) continue;
    participants[rank].window->readers_done.fetch_add(
        1, std::memory_order_release);
  }
}

}  // namespace ring_keras
