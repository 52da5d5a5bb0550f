#include "tf_ops/transport/mpi/process.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <utility>

namespace ring_keras::mpi {
namespace {

// Between looks at whether all processes have the communicator.
constexpr std::chrono::milliseconds kLookInterval(1);

// How long the end of the process waits for what peers may still say: some MPIs
// warn of messages that nobody has taken.
constexpr double kLastWordsS = 0.5;
// The same for what this process has sent to peers that take nothing. MPI's end
// would wait for them without end.
constexpr double kLastSendsS = 30;

// It is never destroyed: MPI is needed until the process ends.
std::atomic<Process*> running{nullptr};

Status Unusable(const std::string& why) {
  return Status(StatusCode::kInternal, ErrorCode::kMpiUnusable, why);
}

}  // namespace

bool Process::IsRunning() { return running.load() != nullptr; }

StatusOr<Process*> Process::Start(const std::string& library,
                                  const std::string& folder) {
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  if (!IsRunning()) {
    StatusOr<Process*> begun = Begin(library, folder);
    RING_KERAS_RETURN_IF_ERROR(begun.status());
    running.store(begun.value());
  }
  return running.load();
}

StatusOr<Process*> Process::Begin(const std::string& library,
                                  const std::string& folder) {
  auto opened = OpenCalls(library, folder);
  RING_KERAS_RETURN_IF_ERROR(opened.status());
  Calls& calls = *opened.value();
  if (calls.IsFinalized()) {
    return Unusable(
        "MPI has ended in this process, and cannot begin again. Call "
        "MPI_Finalize(), if at all, after shutdown().");
  }
  const bool ours = !calls.IsInitialized();
  if (ours) {
    const int error = calls.Initialize();
    if (error != Calls::kSuccess) {
      return Unusable(StrCat("MPI cannot begin: ", calls.Describe(error), " (",
                             calls.version(), ")."));
    }
  }
  if (!calls.AllowsAllThreads()) {
    if (ours) calls.Finalize();
    return Unusable(StrCat(
        "MPI must allow calls from several threads at once "
        "(MPI_THREAD_MULTIPLE), as ring_keras calls it from its own. ",
        calls.version(),
        ours ? " does not: take another."
             : " has begun without: call MPI_Init_thread() with it, or leave "
               "that to init(). In mpi4py it is the default."));
  }
  Process* const process = new Process(std::move(opened.value()));
  process->ours_ = ours;
  // Of MPI's end, which may be somebody else's, and of the process's.
  process->calls_->BeforeEnd([process] { process->progress_.Stop(); });
  std::atexit(&Process::End);
  return process;
}

void Process::End() {
  Process& process = *running.load();
  // In a forked child it is its parent's.
  if (!process.owner_.IsThis()) return;
  // What is still under way may be for somebody who is gone.
  if (process.ours_ && !process.lost_peer_ && !process.calls_->IsFinalized()) {
    process.Finalize();
  }
  process.progress_.Stop();
}

void Process::Finalize() {
  const auto sweep_for = [this](double timeout_s) {
    const Deadline soon = Deadline::After(timeout_s);
    while (Sweep() > 0) {
      if (soon.Expired()) return false;
      std::this_thread::sleep_for(kLookInterval);
    }
    return true;
  };
  if (!sweep_for(kLastWordsS)) {
    std::lock_guard<std::mutex> lock(kept_mutex_);
    for (Kept& kept : kept_) {
      if (kept.kind == Kind::kReceive) calls_->Cancel(&kept.request);
    }
  }
  if (sweep_for(kLastSendsS)) calls_->Finalize();
}

Status Process::MakeCommunicator(Store& store, Deadline deadline) {
  if (has_communicator_) return Status::Ok();
  int error = Calls::kSuccess;
  // An init() that failed may have begun.
  if (!begun_) error = calls_->BeginCommunicator(&communicator_);
  begun_ = true;
  while (error == Calls::kSuccess) {
    Progress progress;
    error = calls_->Test(&communicator_, &progress);
    if (progress.done) break;
    if (deadline.Expired()) {
      return Status(StatusCode::kDeadlineExceeded, ErrorCode::kRankUnreachable,
                    "not all of MPI's processes have called init() yet. Look "
                    "at MPI's network, or raise RING_KERAS_INIT_TIMEOUT_S.");
    }
    if (deadline.Interrupted()) return Interrupted();
    // Ends when a rank does, so that nobody waits for the dead.
    RING_KERAS_RETURN_IF_ERROR(store.Pause(deadline.Within(0)));
    std::this_thread::sleep_for(kLookInterval);
  }
  if (error == Calls::kSuccess) error = calls_->FinishCommunicator();
  if (error == Calls::kSuccess) {
    progress_.Start([this] {
      calls_->MakeProgress();
      Sweep();
    });
  }
  if (error != Calls::kSuccess) {
    return Unusable(StrCat(
        "MPI cannot make a communicator: ", calls_->Describe(error), "."));
  }
  has_communicator_ = true;
  return Status::Ok();
}

void Process::Keep(Kind kind, const Request& request,
                   std::shared_ptr<char[]> memory) {
  std::lock_guard<std::mutex> lock(kept_mutex_);
  kept_.push_back({kind, request, std::move(memory)});
}

size_t Process::Sweep() {
  std::lock_guard<std::mutex> lock(kept_mutex_);
  std::erase_if(kept_, [this](Kept& kept) {
    Progress progress;
    const int error = calls_->Test(&kept.request, &progress);
    return error != Calls::kSuccess || progress.done;
  });
  return kept_.size();
}

}  // namespace ring_keras::mpi
