// What the ranks tell each other besides data.
#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "tf_ops/matching/signature.h"
#include "tf_ops/monitoring/stacks.h"
#include "tf_ops/runtime/abort_message.h"
#include "tf_ops/runtime/progress_engine.h"
#include "tf_ops/transport/relayed_frame.h"
#include "tf_ops/transport/status_wire.h"

namespace ring_keras {
namespace {

// Of thousands of ranks that are waited for, some say where they stand.
constexpr size_t kMostAwaited = 4;

// Of an announcement whose operation has ended here, or never begins: peers
// that do not know yet that the communicator is broken may send for it.
void CancelEnded(Communicator& communicator, const Announcement& announcement) {
  if (communicator.status().ok() || announcement.number == 0) return;
  for (int rank = 0; rank < communicator.size(); ++rank) {
    if (rank == communicator.rank()) continue;
    communicator.pair(rank).Cancel(
        DataKeyOf(announcement.use, announcement.number));
  }
}

}  // namespace

void ProgressEngine::HandleControl(int job_rank, FrameType type, uint64_t key,
                                   std::string payload) {
  switch (type) {
    case FrameType::kAnnouncement:
      return HandleAnnouncement(job_rank, key, payload);
    case FrameType::kAbort:
      return HandleAbort(static_cast<int>(key), payload);
    case FrameType::kGivenUp:
      return HandleGivenUp(job_rank, static_cast<int>(key), payload);
    case FrameType::kDump:
      return WriteDump(key == static_cast<uint64_t>(DumpCause::kStall)
                           ? DumpCause::kStall
                           : DumpCause::kOther,
                       payload, Asker::kPeer);
    case FrameType::kRelayed:
      return HandleRelayed(job_rank, static_cast<int>(key), payload);
    case FrameType::kPost:
      return HandlePost(job_rank, key, std::move(payload));
    case FrameType::kWaiting:
      return HandleWaiting(job_rank, key, std::move(payload));
    case FrameType::kDebugged:
      return NoteDebugged(job_rank, key != 0);
    case FrameType::kAwaited:
      if (key == static_cast<uint64_t>(mesh_.rank())) HandleAwaited(payload);
      return;
    case FrameType::kData:
      break;  // Is the pair's own.
  }
}

void ProgressEngine::TellAwaited(const Operation& operation,
                                 const std::string& how) {
  const std::vector<int> missing = operation.MissingRanks();
  for (size_t i = 0; i < std::min(missing.size(), kMostAwaited); ++i) {
    operation.communicator().Tell(FrameType::kAwaited, missing[i], how);
  }
}

void ProgressEngine::HandleAwaited(const std::string& how) {
  // All ranks that wait say so at about the same time, and once is enough; when
  // they say it again, twice as long has passed.
  const Clock::time_point now = Clock::now();
  const std::chrono::duration<double> passed = now - last_place_;
  if (passed.count() < options_.stall_warning_s / 2) return;
  last_place_ = now;
  AskForPlace(Prefix(ErrorCode::kStalled) + how);
}

void ProgressEngine::TellDebugged(bool is_debugged) {
  NoteDebugged(mesh_.rank(), is_debugged);
  const std::shared_ptr<Member> everyone = shared_.MemberOf(0);
  if (everyone == nullptr) return;
  everyone->communicator->Tell(FrameType::kDebugged, is_debugged ? 1 : 0, "");
}

void ProgressEngine::NoteDebugged(int job_rank, bool is_debugged) {
  if (is_debugged) {
    debugged_.insert(job_rank);
  } else {
    debugged_.erase(job_rank);
  }
}

// Every rank of a communicator has it before any uses it.
void ProgressEngine::HandleRelayed(int job_rank, int communicator_id,
                                   const std::string& bytes) {
  const std::shared_ptr<Member> member = shared_.MemberOf(communicator_id);
  if (member == nullptr) return;  // Removed.
  StatusOr<RelayedFrame> frame = DecodeRelayedFrame(bytes);
  if (!frame.ok()) return BreakSharedWith(job_rank, frame.status());
  Communicator& communicator = *member->communicator;
  RelayedFrame& said = frame.value();
  if (!communicator.Contains(job_rank) || !communicator.Contains(said.origin)) {
    return;
  }
  communicator.PassOn(communicator.PlaceOf(job_rank), bytes);
  if (said.type == FrameType::kAbort) member->peers_know_broken = true;
  HandleControl(said.origin, said.type, said.key, std::move(said.payload));
}

void ProgressEngine::HandleAnnouncement(int job_rank, uint64_t key,
                                        const std::string& bytes) {
  StatusOr<Announcement> decoded = DecodeAnnouncement(bytes);
  if (!decoded.ok()) {
    BreakSharedWith(job_rank, Status(decoded.status().code(),
                                     StrCat("from rank ", job_rank, " to rank ",
                                            mesh_.rank(), ": ",
                                            decoded.status().message())));
    return;
  }
  Announcement& announcement = decoded.value();
  const std::shared_ptr<Member> member =
      shared_.MemberOf(announcement.use.communicator_id);
  const bool in_step = announcement.use.in_step();
  bool passed_more = false;
  if (member == nullptr &&
      (in_step || shared_.WasRemoved(announcement.use.communicator_id))) {
    return;
  }
  if (in_step) {
    if (!member->communicator->Contains(job_rank)) return;
    passed_more = member->steps.OnAnnounced(
        member->communicator->PlaceOf(job_rank), announcement.use.step);
  }
  const Matcher::Found found = matcher_.Take(key, job_rank, announcement);
  if (found == Matcher::Found::kEnded ||
      (found == Matcher::Found::kNone && in_step &&
       steps_.IsPast(*member, announcement.use))) {
    if (member != nullptr) CancelEnded(*member->communicator, announcement);
  } else if (found == Matcher::Found::kNone) {
    matcher_.Keep(key, job_rank, std::move(announcement));
  }
  if (passed_more) {
    steps_.FailLost(*member, member->communicator->PlaceOf(job_rank));
  }
}

void ProgressEngine::HandlePost(int job_rank, uint64_t key, std::string bytes) {
  StatusOr<PostMessage> post = DecodePost(std::move(bytes));
  if (!post.ok()) return BreakSharedWith(job_rank, post.status());
  const std::shared_ptr<Member> member =
      shared_.MemberOf(post.value().header.communicator_id);
  if (member == nullptr) return;  // Removed.
  Communicator& communicator = *member->communicator;
  // Of one that is broken nothing is used any more.
  if (!communicator.Contains(job_rank) || !communicator.status().ok()) return;
  const Status taken = communicator.posts().Take(
      key, communicator.PlaceOf(job_rank), std::move(post.value()));
  if (!taken.ok()) BreakSharedWith(job_rank, taken);
}

void ProgressEngine::HandleWaiting(int job_rank, uint64_t key,
                                   std::string bytes) {
  StatusOr<PostMessage> post = DecodePost(std::move(bytes));
  if (!post.ok()) return BreakSharedWith(job_rank, post.status());
  const PostHeader& header = post.value().header;
  const std::shared_ptr<Member> member =
      shared_.MemberOf(header.communicator_id);
  if (member == nullptr || !member->communicator->Contains(job_rank)) return;
  Communicator& communicator = *member->communicator;
  communicator.posts().TakeWaiting(key, communicator.PlaceOf(job_rank),
                                   header.use);
}

void ProgressEngine::HandleAbort(int communicator_id,
                                 const std::string& bytes) {
  Status why = DecodeStatus(bytes);
  const std::shared_ptr<Member> member =
      shared_.MemberOfBroken(communicator_id, why);
  if (member == nullptr) return;
  // What a rank has given up it wants nobody to complete.
  const bool at_once = why.code() != StatusCode::kPeerLost;
  breaks_.push_back([member, why = std::move(why)] {
    Communicator& communicator = *member->communicator;
    communicator.Break(why);
    // It has come straight: those below this rank may have no other way to it.
    if (!communicator.connects_all()) TellAbort(*member, communicator.status());
  });
  if (at_once) CarryOutBreaks();
}

void ProgressEngine::HandleGivenUp(int job_rank, int communicator_id,
                                   const std::string& bytes) {
  const std::shared_ptr<Member> member = shared_.MemberOf(communicator_id);
  if (member == nullptr || !member->communicator->Contains(job_rank)) return;
  StatusOr<GivenUp> given_up = DecodeGivenUp(bytes);
  if (!given_up.ok()) return BreakSharedWith(job_rank, given_up.status());
  steps_.OnGivenUp(*member, member->communicator->PlaceOf(job_rank),
                   given_up.value());
}

}  // namespace ring_keras
