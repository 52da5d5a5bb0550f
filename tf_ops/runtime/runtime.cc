#include "tf_ops/runtime/runtime.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <utility>

#include "tf_ops/cuda/library_paths.h"
#include "tf_ops/runtime/current_membership.h"
#include "tf_ops/runtime/job.h"

namespace ring_keras {
namespace {

Status Outlived(const std::string& what, uint64_t generation) {
  return Status(
      StatusCode::kNotInitialized,
      StrCat(what,
             ": it was traced or made before the last shutdown(), for ranks "
             "that are no more; this is generation ",
             generation,
             " of the job. After init(), trace functions anew, compile models "
             "again, and add process sets again."));
}

// A handler of signals may call anything, also shutdown(): from within a call
// that uses the job that can only begin it, for the job is in use until that
// call returns.
struct ThreadState {
  int calls = 0;
  bool has_shut_down = false;
};
thread_local ThreadState this_thread;

// The membership of this process, if it is in one.
struct Slot {
  // Shared by calls, exclusive for Init and Shutdown.
  std::shared_mutex mutex;
  std::unique_ptr<Job> job;  // Null outside of a membership.
  // The same, between Init and Shutdown. A forked child may read what does not
  // change of it, without the mutex.
  std::atomic<const Job*> in_force{nullptr};
  // In a forked child: the place of the rank it was forked from.
  std::optional<Topology> parents_place;
  // Alone a process counts its memberships itself; else the store does.
  uint64_t memberships = 0;

  // Why there is no job.
  Status NotInitialized() const;

  // Forgets a job that has been left.
  void End() {
    std::unique_lock<std::shared_mutex> lock(mutex);
    job.reset();
    parents_place.reset();
  }

  // `function(job)`, or NotInitialized.
  template <typename Function>
  auto WithJob(Function function) -> decltype(function(*job)) {
    ++this_thread.calls;
    auto result = [&]() -> decltype(function(*job)) {
      std::shared_lock<std::shared_mutex> lock(mutex);
      if (job == nullptr) return NotInitialized();
      return function(*job);
    }();
    if (--this_thread.calls == 0 && this_thread.has_shut_down) {
      this_thread.has_shut_down = false;
      End();
    }
    return result;
  }
};

// The runtime's; for functions that are not its members.
Slot* slot_of_process = nullptr;

}  // namespace

struct Runtime::Impl : Slot {};

Runtime::Runtime()
    : impl_(std::make_unique<Impl>()), in_child_([this] { ForgetInChild(); }) {
  slot_of_process = impl_.get();
}
Runtime::~Runtime() = default;

Runtime& Runtime::Get() {
  // Never destroyed: threads of TensorFlow may outlive static destructors.
  static Runtime* runtime = new Runtime;
  return *runtime;
}

// The parent's threads are not here, and its mutexes may never be free: nothing
// of it is touched, or destroyed, but what does not change between Init and
// Shutdown.
void Runtime::ForgetInChild() {
  const Impl* parents = impl_.release();
  impl_ = std::make_unique<Impl>();
  slot_of_process = impl_.get();
  const Job* job = parents->in_force;
  if (parents->parents_place.has_value()) {  // Forked twice.
    impl_->parents_place = parents->parents_place;
  } else if (job != nullptr) {
    impl_->parents_place = job->topology();
  }
}

Status Slot::NotInitialized() const {
  if (!parents_place.has_value()) {
    return Status(
        StatusCode::kNotInitialized,
        "ring_keras is not initialized. Call ring_keras.init() first.");
  }
  return Status(
      StatusCode::kNotInitialized,
      StrCat("this process (pid ", getpid(), ") was forked from rank ",
             parents_place->rank,
             ", and is not a rank itself: it cannot take part in collectives. "
             "Call them in the process that called ring_keras.init(), or start "
             "this one with multiprocessing's \"spawn\" method and its own "
             "ring_keras.init()."));
}

Status Runtime::Init(const InitOptions& options) {
  std::unique_lock<std::shared_mutex> lock(impl_->mutex);
  if (impl_->parents_place.has_value()) return impl_->NotInitialized();
  if (impl_->job != nullptr) {
    return Status(StatusCode::kInvalidArgument,
                  "ring_keras is initialized already.");
  }
  ConfigureLogging(options.size > 1 ? StrCat("rank ", options.rank) : "",
                   options.log_level);
  cuda::SetLibraryPath(options.cuda_library_path);
  InitOptions own = options;
  if (options.size == 1) own.generation += impl_->memberships;
  StatusOr<std::unique_ptr<Job>> job = Job::Start(own);
  RING_KERAS_RETURN_IF_ERROR(job.status());
  impl_->job = std::move(job.value());
  impl_->in_force = impl_->job.get();
  ++impl_->memberships;
  return Status::Ok();
}

void Runtime::Shutdown(const std::string& reason) {
  // Pending Run() calls hold the lock shared until the engine ends them.
  {
    std::shared_lock<std::shared_mutex> lock(impl_->mutex);
    impl_->in_force = nullptr;
    if (impl_->job != nullptr) impl_->job->Leave(reason);
  }
  if (this_thread.calls > 0) {
    this_thread.has_shut_down = true;
  } else {
    End();
  }
}

void Runtime::End() { impl_->End(); }

bool Runtime::initialized() const {
  std::shared_lock<std::shared_mutex> lock(impl_->mutex);
  return impl_->job != nullptr || impl_->parents_place.has_value();
}

StatusOr<Topology> Runtime::GetTopology() const {
  std::shared_lock<std::shared_mutex> lock(impl_->mutex);
  if (impl_->parents_place.has_value()) return *impl_->parents_place;
  if (impl_->job == nullptr) return impl_->NotInitialized();
  return impl_->job->topology();
}

StatusOr<MembershipNumbers> CurrentMembership() {
  Runtime::Get();
  return slot_of_process->WithJob([](Job& job) -> StatusOr<MembershipNumbers> {
    return MembershipNumbers{job.generation(), job.communicator_base()};
  });
}

Status UseCudaDevice(int device) {
  Runtime::Get();
  return slot_of_process->WithJob([&](Job& job) {
    job.UseCudaDevice(device);
    return Status::Ok();
  });
}

void Runtime::Submit(Request request, DoneCallback done, double patience_s) {
  std::shared_lock<std::shared_mutex> lock(impl_->mutex);
  if (impl_->job == nullptr) {
    lock.unlock();
    done(impl_->NotInitialized());
    return;
  }
  Job& job = *impl_->job;
  if (!IsOfMembership(request.communicator_id, job.communicator_base())) {
    const Status outlived = Outlived(request.name, job.generation());
    lock.unlock();
    done(outlived);
    return;
  }
  request.communicator_id = LocalCommunicatorId(request.communicator_id);
  job.engine().Submit(std::move(request), std::move(done), patience_s);
}

Status Runtime::Run(Request request) {
  return impl_->WithJob([&](Job& job) -> Status {
    if (!IsOfMembership(request.communicator_id, job.communicator_base())) {
      return Outlived(request.name, job.generation());
    }
    request.communicator_id = LocalCommunicatorId(request.communicator_id);
    return job.engine().Run(std::move(request));
  });
}

void Runtime::Interrupt(int communicator_id) {
  std::shared_lock<std::shared_mutex> lock(impl_->mutex);
  if (impl_->job == nullptr) return;
  Job& job = *impl_->job;
  if (communicator_id == Engine::kEveryCommunicator) {
    job.engine().Interrupt(communicator_id);
  } else if (IsOfMembership(communicator_id, job.communicator_base())) {
    job.engine().Interrupt(LocalCommunicatorId(communicator_id));
  }
}

void Runtime::InterruptAll() { Interrupt(Engine::kEveryCommunicator); }

StatusOr<int> Runtime::AddCommunicator(const std::vector<int>& ranks) {
  return impl_->WithJob([&](Job& job) { return job.AddCommunicator(ranks); });
}

Status Runtime::RemoveCommunicator(int communicator_id) {
  // Of another membership: no communicator of this one, as all ranks agree.
  return impl_->WithJob([&](Job& job) {
    return job.RemoveCommunicator(
        IsOfMembership(communicator_id, job.communicator_base())
            ? LocalCommunicatorId(communicator_id)
            : communicator_id);
  });
}

StatusOr<std::vector<int>> Runtime::CommunicatorRanks(
    int communicator_id) const {
  return impl_->WithJob([&](Job& job) -> StatusOr<std::vector<int>> {
    if (!IsOfMembership(communicator_id, job.communicator_base())) {
      return Outlived("process set", job.generation());
    }
    return job.CommunicatorRanks(LocalCommunicatorId(communicator_id));
  });
}

StatusOr<std::shared_ptr<void>> Runtime::AllocateBuffer(size_t nbytes) {
  return impl_->WithJob([&](Job& job) -> StatusOr<std::shared_ptr<void>> {
    Mesh& mesh = job.engine().mesh();
    if (mesh.has_segment()) return mesh.buffers().Allocate(nbytes);
    void* memory = std::calloc(std::max<size_t>(nbytes, 1), 1);
    if (memory == nullptr) {
      return Status(StatusCode::kResourceExhausted,
                    StrCat("no memory for a buffer of ", nbytes, " bytes."));
    }
    return std::shared_ptr<void>(memory, std::free);
  });
}

Status Runtime::SetTuning(const Tuning& tuning) {
  return impl_->WithJob([&](Job& job) { return job.SetTuning(tuning); });
}

StatusOr<Tuning> Runtime::GetTuning() const {
  return impl_->WithJob(
      [](Job& job) -> StatusOr<Tuning> { return job.tuning(); });
}

StatusOr<std::string> Runtime::TransportTo(int rank) const {
  return impl_->WithJob([&](Job& job) -> StatusOr<std::string> {
    const Topology& topology = job.topology();
    if (rank < 0 || rank >= topology.size) {
      return Status(StatusCode::kInvalidArgument,
                    StrCat("expected a rank from 0 to ", topology.size - 1,
                           ", got ", rank, "."));
    }
    if (rank == topology.rank) return std::string("self");
    return std::string(job.engine().mesh().SharesMemoryWith(rank) ? "shm"
                                                                  : "tcp");
  });
}

}  // namespace ring_keras
