#include "tf_ops/runtime/operation.h"

#include <algorithm>
#include <utility>

#include "tf_ops/collectives/rows.h"

namespace ring_keras {

Operation::Operation(Request request, uint32_t sequence,
                     std::shared_ptr<Communicator> communicator,
                     DoneCallback done)
    : request_(std::move(request)),
      communicator_(std::move(communicator)),
      done_(std::move(done)),
      own_(MakeAnnouncement(request_, sequence)),
      key_(KeyOf(own_)),
      announcements_(communicator_->size()) {}

void Operation::Start() {
  task_.emplace(Run());
  task_->Start();
}

Task Operation::Run() {
  RING_KERAS_CO_RETURN_IF_ERROR(communicator_->status());
  const Status prepared = Prepare();
  own_.error = prepared.message();
  Announce();
  RING_KERAS_CO_RETURN_IF_ERROR(prepared);
  co_await communicator_->Until(
      [this] { return complete() || !failure_.ok(); });
  RING_KERAS_CO_RETURN_IF_ERROR(communicator_->status());
  RING_KERAS_CO_RETURN_IF_ERROR(failure_);
  StatusOr<Participants> participants = Match();
  RING_KERAS_CO_RETURN_IF_ERROR(participants.status());
  ran_ = true;
  Task exchange = collective_->Run(participants.value());
  Status status = co_await exchange;
  // The peers wait for this rank's data; whatever the reason, they must know.
  if (!status.ok()) communicator_->Break(status);
  co_return status;
}

Status Operation::Prepare() {
  RING_KERAS_RETURN_IF_ERROR(Validate(request_, communicator_->size()));
  if (Encode(own_).size() > kMaxControlBytes) {
    own_.shapes.clear();
    return Status(StatusCode::kInvalidArgument,
                  StrCat(title(), ": ", request_.inputs.size(),
                         " tensors are too many for one request. Reduce them "
                         "in several groups."));
  }
  collective_ = MakeCollective(request_, *communicator_, key_);
  const auto window_nbytes = collective_->window_nbytes();
  if (window_nbytes.has_value()) {
    WindowAllocator& windows = communicator_->mesh().windows();
    StatusOr<Window*> window = windows.Allocate(*window_nbytes);
    RING_KERAS_RETURN_IF_ERROR(window.status());
    window_ = window.value();
    own_.window_offset = windows.OffsetOf(window_);
    collective_->Prepare(window_);
  }
  return Status::Ok();
}

void Operation::Announce() {
  const std::string encoded = Encode(own_);
  for (int rank = 0; rank < communicator_->size(); ++rank) {
    if (rank == communicator_->rank()) continue;
    communicator_->pair(rank).SendControl(FrameType::kAnnouncement, key_,
                                          encoded);
  }
  Join(communicator_->rank(), own_);
}

void Operation::Join(int rank, Announcement announcement) {
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
  Participants participants(communicator_->size());
  for (int rank = 0; rank < communicator_->size(); ++rank) {
    Announcement& announcement = *announcements_[rank];
    Participant& participant = participants[rank];
    if (!announcement.shapes.empty()) {
      participant.rows = RowCount(announcement.shapes[0]);
    }
    participant.splits = std::move(announcement.splits);
    if (window_ == nullptr) continue;
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

void Operation::Finish() {
  const Status status = task_->result();
  if (window_ != nullptr) {
    // To a mismatch all ranks agree. Any other failure is this rank's alone:
    // peers may have gone on, and read the window.
    const bool readable =
        ran_ || !failure_.ok() || !communicator_->status().ok();
    const uint32_t readers = readable ? communicator_->size() - 1 : 0;
    communicator_->mesh().windows().Release(window_, readers);
  }
  if (!status.ok()) {
    for (int rank = 0; rank < communicator_->size(); ++rank) {
      if (rank == communicator_->rank()) continue;
      communicator_->pair(rank).Cancel(key_);
    }
  }
  collective_.reset();
  DoneCallback done = std::move(done_);
  done(status);
}

std::vector<int> Operation::MissingRanks() const {
  std::vector<int> missing;
  for (int rank = 0; rank < communicator_->size(); ++rank) {
    if (!announcements_[rank].has_value()) {
      missing.push_back(communicator_->ranks()[rank]);
    }
  }
  return missing;
}

}  // namespace ring_keras
