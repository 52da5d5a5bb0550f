#include "tf_ops/runtime/progress_engine.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "tf_ops/common/logging.h"
#include "tf_ops/runtime/abort_message.h"
#include "tf_ops/runtime/dump_signal.h"
#include "tf_ops/runtime/wait_text.h"

namespace ring_keras {
namespace {

constexpr std::chrono::milliseconds kWatchInterval(50);
// Peers that have not left may send without end.
constexpr int kMaxReadTurns = 64;

}  // namespace

ProgressEngine::ProgressEngine(const EngineOptions& options, Mesh& mesh,
                               Scheduler& scheduler, Matcher& matcher,
                               const Recorder& recorder, SharedState& shared)
    : options_(options),
      own_name_(options.rank_names[mesh.rank()]),
      mesh_(mesh),
      scheduler_(scheduler),
      matcher_(matcher),
      shared_(shared),
      peers_(mesh, options.rank_names, operations_),
      steps_(mesh.rank(), operations_, matcher, shared),
      joins_(operations_, matcher, shared, options.stall_warning_s),
      flight_recorder_(options.trace_dir, mesh.rank(), mesh.size(), own_name_,
                       recorder) {
  (void)TakeDumpRequest();  // Of an earlier membership.
  for (int rank = 0; rank < mesh.size(); ++rank) {
    if (rank == mesh.rank()) continue;
    mesh.pair(rank).set_control_handler(
        [this, rank](FrameType type, uint64_t key, std::string payload) {
          HandleControl(rank, type, key, std::move(payload));
        });
  }
}

bool ProgressEngine::Poll() {
  bool progress = false;
  if (shared_.queue.has_news().load(std::memory_order_acquire)) {
    progress |= TakeNews();
  }
  progress |= mesh_.Pump();
  if (!joins_.empty()) {
    progress |= joins_.Serve([this](std::unique_ptr<Operation> operation) {
      Adopt(std::move(operation));
    });
  }
  // Of all that has been taken.
  if (stopping_) OnStop();
  if (scheduler_.RunReady()) {
    progress = true;
    steps_.FailNewLostWaits();
  }
  progress |= FinishEnded();
  return progress || CarryOutBreaks();
}

bool ProgressEngine::CarryOutBreaks() {
  if (breaks_.empty()) return false;
  for (const auto& carry_out : std::exchange(breaks_, {})) carry_out();
  return true;
}

bool ProgressEngine::RunAlone(Operation& operation, double drive_for_s) {
  CarryOutBreaks();
  BreakIfLost(operation.communicator());
  scheduler_.SpinLonger(std::chrono::duration_cast<Scheduler::Clock::duration>(
                            std::chrono::duration<double>(drive_for_s)),
                        &shared_.queue.has_news());
  operations_.alone = &operation;
  operation.Start();
  operations_.alone = nullptr;
  scheduler_.SpinBriefly();
  if (operation.ended()) {
    End(operation, true);
    return true;
  }
  operation.StampAwaited();
  return false;
}

bool ProgressEngine::TakeNews() {
  News news;
  {
    std::lock_guard<std::mutex> lock(shared_.mutex);
    news = shared_.queue.Take(operations_.adopting);
    for (auto& operation : operations_.adopting) {
      operation->member().names.ForgetUnused();
    }
  }
  for (const auto& member : news.removed) {
    if (member == nullptr) continue;  // This rank was not in it.
    matcher_.ForgetCommunicator(member->communicator->id());
  }
  RunCalls(news.calls);
  for (const RankEvent& event : news.events) OnRankEvent(event);
  stopping_ = news.stopping;
  const bool any = !news.events.empty() || !operations_.adopting.empty();
  for (auto& operation : operations_.adopting) {
    if (operation->is_join()) operation = joins_.Begin(std::move(operation));
    if (operation != nullptr) Adopt(std::move(operation));
  }
  operations_.adopting.clear();
  // What the interrupted thread waits for is adopted.
  for (const InterruptedWait& wait : news.interrupted) {
    OnInterrupted(wait);
  }
  return any;
}

void ProgressEngine::RunCalls(const std::vector<DriverCall*>& calls) {
  if (calls.empty()) return;
  for (const DriverCall* call : calls) (*call->function)();
  std::lock_guard<std::mutex> lock(shared_.mutex);
  for (DriverCall* call : calls) call->done = true;
  shared_.ended.notify_all();
}

void ProgressEngine::OnRankEvent(const RankEvent& event) {
  // In shared memory nothing else says that nobody reads any more.
  if (event.rank >= 0 && event.rank != mesh_.rank()) {
    Pair& pair = mesh_.pair(event.rank);
    pair.StopSending();
    // One that is merely silent may come back, and take what it did not.
    if (event.kind == RankEvent::Kind::kLeft || event.process_ended) {
      pair.OnPeerGone(event.process_ended);
    }
    mesh_.Forget(event.rank);
  }
  if (event.kind == RankEvent::Kind::kLost) {
    mesh_.Lose(event.rank);
    breaks_.push_back([this, event] {
      BreakSharedWith(event.rank, Status(StatusCode::kPeerLost,
                                         event.rank < 0 ? ErrorCode::kStoreGone
                                                        : ErrorCode::kRankLost,
                                         event.description));
    });
  } else {
    peers_.OnLeft(event);
  }
}

void ProgressEngine::OnStop() {
  CarryOutBreaks();  // The first cause is the one that is told.
  std::string why;
  {
    std::lock_guard<std::mutex> lock(shared_.mutex);
    why = shared_.queue.stop_reason();
  }
  // That it did is not said twice.
  const bool says_more = why.find("shutdown()") == std::string::npos;
  why = !why.empty() && says_more ? ": " + why : "";
  for (auto& operation : operations_.adopted) {
    const std::string what =
        StrCat(own_name_, " called shutdown() while ", operation->description(),
               " was pending", why);
    operation->communicator().Break(Status(StatusCode::kAborted, what));
    TellAbort(operation->member(), Status(StatusCode::kPeerStopped, what));
  }
  std::lock_guard<std::mutex> lock(shared_.mutex);
  // A thread may be about to hand over what it has begun.
  if (static_cast<int>(operations_.adopted.size()) < shared_.active) return;
  shared_.has_told_stop = true;
  shared_.ended.notify_all();
}

// A signal handler has raised, and the program gives up a wait.
void ProgressEngine::OnInterrupted(const InterruptedWait& wait) {
  CarryOutBreaks();
  const auto end = [&](const Operation& operation, const std::string& pending) {
    Communicator& communicator = operation.communicator();
    const bool is_meant =
        wait.communicator_id == InterruptedWait::kEveryCommunicator ||
        wait.communicator_id == communicator.id();
    // What it was for may have ended, and the program entered more.
    if (!is_meant || operation.number > wait.last) return;
    if (!communicator.status().ok()) return;
    const std::string what =
        StrCat(own_name_, " was interrupted while ", pending, " was pending");
    communicator.Break(Status(
        StatusCode::kAborted, ErrorCode::kInterrupted,
        StrCat(what, ". The ranks can no longer be in step: leave the job.")));
    TellAbort(operation.member(), Status(StatusCode::kPeerStopped, what));
  };
  for (const auto& operation : operations_.adopted) {
    end(*operation, operation->description());
  }
  joins_.ForEachWaiting([&](const Operation& join) { end(join, "join()"); });
}

void ProgressEngine::Adopt(std::unique_ptr<Operation> adopted) {
  operations_.adopted.push_back(std::move(adopted));
  Operation& operation = *operations_.adopted.back();
  BreakIfLost(operation.communicator());
  operation.Watch(Clock::now(), options_.stall_warning_s);
  if (!operation.started()) operation.Start();
  if (operation.use().in_step()) steps_.OnAdopted(operation);
}

bool ProgressEngine::FinishEnded() {
  std::vector<std::unique_ptr<Operation>> ended;
  size_t kept = 0;
  for (auto& operation : operations_.adopted) {
    if (operation->ended()) {
      ended.push_back(std::move(operation));
    } else {
      operations_.adopted[kept++] = std::move(operation);
    }
  }
  if (ended.empty()) return false;
  operations_.adopted.resize(kept);
  for (auto& operation : ended) {
    if (operation->is_join()) joins_.Finish(*operation);
    End(*operation, false);
    if (!joins_.empty()) joins_.AfterEnd(*operation);
  }
  const int count = static_cast<int>(ended.size());
  ended.clear();
  std::lock_guard<std::mutex> lock(shared_.mutex);
  shared_.active -= count;
  shared_.ended.notify_all();
  return true;
}

void ProgressEngine::End(Operation& operation, bool alone) {
  Communicator& communicator = operation.communicator();
  if (!operation.status().ok()) {
    if (operation.failed_alone()) communicator.Break(operation.status());
    const Status& broken = communicator.status();
    if (!broken.ok()) TellAbort(operation.member(), broken);
  }
  const bool in_step = operation.use().in_step();
  if (in_step) steps_.BeforeEnd(operation);
  operation.Record(alone);
  operation.Finish();
  if (in_step) steps_.AfterEnd(operation);
}

void ProgressEngine::BreakSharedWith(int job_rank, const Status& why) {
  WriteDump(DumpCause::kOther, why.message(), Asker::kEngine);
  peers_.OnLost(job_rank, why);
}

void ProgressEngine::Watch() {
  ++watches_;
  const Clock::time_point now = Clock::now();
  next_watch_ = now + kWatchInterval;
  ServeDumpSignal();
  CarryOutBreaks();
  for (const PeerWatch::BrokenLink& link : peers_.FindBrokenLinks(now)) {
    {
      std::lock_guard<std::mutex> lock(shared_.mutex);
      if (shared_.broken_link.empty()) shared_.broken_link = link.how;
    }
    BreakSharedWith(link.rank,
                    Status(StatusCode::kPeerLost, ErrorCode::kLinkBroken,
                           link.how + link.advice));
  }
  if (peers_.any_left()) {
    peers_.FailUsesOfLeft();
    // What it sent last may say why it left.
    if (ReadWhatHasCome()) peers_.FailWhatNeedsLeft();
  }
  for (auto& operation : operations_.adopted) {
    const Status& broken = operation->communicator().status();
    if (!broken.ok()) {
      // It ends when no stream needs its memory any more, for which the other
      // ranks need not wait.
      TellAbort(operation->member(), broken);
    } else if (debugged_.empty()) {
      WatchAge(*operation, now);
    } else {  // That time does not count.
      operation->Watch(now, options_.stall_warning_s);
    }
  }
}

bool ProgressEngine::ReadWhatHasCome() {
  bool moved = true;
  for (int turn = 0; turn < kMaxReadTurns && moved; ++turn) {
    moved = mesh_.Pump();
  }
  CarryOutBreaks();
  return !moved;
}

void ProgressEngine::WatchAge(Operation& operation, Clock::time_point now) {
  const double age_s = operation.AgeSeconds(now);
  if (2 * age_s >
      std::min(options_.stall_warning_s, options_.collective_timeout_s)) {
    if (operation.HasMoved()) {
      operation.Watch(now, options_.stall_warning_s);
      return;
    }
    // So that who speaks of it next can name the ranks that are not there.
    operation.TellWaiting();
  }
  if (age_s > options_.collective_timeout_s) {
    const std::string why =
        DescribeGivingUp(operation, age_s, operations_, matcher_, shared_);
    WriteDump(DumpCause::kOther, why, Asker::kEngine);
    operation.communicator().Break(Status(StatusCode::kDeadlineExceeded,
                                          ErrorCode::kCollectiveTimeout, why));
  } else if (age_s > operation.next_stall_warning_s && !operation.queued()) {
    const std::string text =
        DescribeStall(operation, age_s, operations_, matcher_, shared_);
    Log(LogLevel::kWarning, Prefix(ErrorCode::kStalled) + text +
                                DescribeWayToSee(options_.trace_dir));
    TellAwaited(operation, DescribeAwaited(operation, age_s));
    WriteDump(DumpCause::kStall, text, Asker::kEngine);
    // Who has been told needs to hear it again less and less often.
    operation.next_stall_warning_s *= 2;
  }
}

void ProgressEngine::ServeDumpSignal() {
  if (!TakeDumpRequest()) return;
  WriteDump(DumpCause::kOther, "SIGUSR2", Asker::kThisRank);
}

void ProgressEngine::WriteDump(DumpCause cause, const std::string& why,
                               Asker asker) {
  if (!flight_recorder_.Takes(cause, asker)) return;
  const std::shared_ptr<Member> everyone = shared_.MemberOf(0);
  if (asker != Asker::kPeer && everyone != nullptr) {
    everyone->communicator->Tell(FrameType::kDump, static_cast<uint64_t>(cause),
                                 why);
  }
  flight_recorder_.Write(cause, why, UnderWay(/*with_missing=*/true));
}

std::vector<PendingCollective> ProgressEngine::UnderWay(
    bool with_missing) const {
  std::vector<PendingCollective> pending;
  const auto add = [&pending, with_missing](Operation& operation) {
    pending.push_back({operation.Described(), {}});
    if (with_missing) pending.back().missing = operation.MissingRanks();
  };
  operations_.ForEach(add);
  joins_.ForEachWaiting(add);
  std::lock_guard<std::mutex> lock(shared_.mutex);
  for (const auto& operation : shared_.queue.operations()) add(*operation);
  return pending;
}

}  // namespace ring_keras
