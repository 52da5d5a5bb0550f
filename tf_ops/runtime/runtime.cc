#include "tf_ops/runtime/runtime.h"

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "tf_ops/cuda/library_paths.h"
#include "tf_ops/runtime/job.h"
#include "tf_ops/runtime/membership_slot.h"
#include "tf_ops/runtime/signals.h"

namespace ring_keras {
namespace {

Status Outlived(const std::string& what, uint64_t generation) {
  return Status(
      StatusCode::kNotInitialized, ErrorCode::kPastGeneration,
      StrCat(what,
             ": it was traced or made before the last shutdown(), for ranks "
             "that are no more; this is generation ",
             generation,
             " of the job. After init(), trace functions anew, compile models "
             "again, and add process sets again."));
}

}  // namespace

struct Runtime::Impl : MembershipSlot {};

Runtime::Runtime()
    : impl_(std::make_unique<Impl>()), in_child_([this] { ForgetInChild(); }) {
  MembershipSlot::of_process = impl_.get();
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
  MembershipSlot::of_process = impl_.get();
  const Job* job = parents->in_force;
  if (parents->parents_topology.has_value()) {  // Forked twice.
    impl_->parents_topology = parents->parents_topology;
  } else if (job != nullptr) {
    impl_->parents_topology = job->topology();
  }
}

Status Runtime::Init(const InitOptions& options) {
  if (this_thread.calls > 0) return CalledInWait("init()");
  InitOptions own = options;
  // Also where memory or threads are short.
  struct Initializing {
    MembershipSlot* slot = nullptr;
    ~Initializing() {
      if (slot == nullptr) return;
      std::unique_lock<std::shared_mutex> lock(slot->mutex);
      slot->initializing = false;
    }
  } initializing;
  {
    std::unique_lock<std::shared_mutex> lock(impl_->mutex);
    if (impl_->parents_topology.has_value()) return impl_->NotInitialized();
    if (impl_->job != nullptr || impl_->initializing) {
      return Status(StatusCode::kInvalidArgument,
                    ErrorCode::kAlreadyInitialized,
                    impl_->initializing
                        ? "ring_keras is being initialized by another call."
                        : "ring_keras is initialized already.");
    }
    impl_->initializing = true;
    initializing.slot = impl_.get();
    impl_->init_cancelled = false;
    // Nobody numbers the memberships of a rank that is alone, but a launcher
    // whose jobs grow and shrink, from 1 on.
    if (options.size == 1 && options.generation == 0) {
      own.generation = impl_->memberships;
    }
  }
  ConfigureLogging(options.size > 1 ? StrCat("rank ", options.rank) : "",
                   options.log_level);
  cuda::SetLibraryPath(options.cuda_library_path);
  bool interrupted = false;
  own.interruption = [&, slot = impl_.get()] {
    interrupted = interrupted || HandleSignals();
    return interrupted || slot->init_cancelled;
  };
  StatusOr<std::unique_ptr<Job>> job = Job::Start(own);
  // Also when the others came at that very moment: whoever has asked for an end
  // believes that it is one.
  if (job.ok() && own.interruption()) {
    job.value()->Leave("its init() failed: " + Interrupted().message());
    job = Interrupted();
  }
  RING_KERAS_RETURN_IF_ERROR(job.status());
  std::unique_lock<std::shared_mutex> lock(impl_->mutex);
  if (impl_->init_cancelled) {  // Since that was asked.
    lock.unlock();
    job.value()->Leave("its init() failed: " + Interrupted().message());
    return Interrupted();
  }
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
    if (impl_->initializing) impl_->init_cancelled = true;
    if (impl_->job != nullptr) impl_->job->Leave(reason);
  }
  if (this_thread.calls > 0) {
    this_thread.has_shut_down = true;
  } else {
    impl_->End();
  }
}

bool Runtime::initialized() const {
  std::shared_lock<std::shared_mutex> lock(impl_->mutex);
  return impl_->job != nullptr || impl_->parents_topology.has_value();
}

StatusOr<Topology> Runtime::GetTopology() const {
  std::shared_lock<std::shared_mutex> lock(impl_->mutex);
  if (impl_->parents_topology.has_value()) return *impl_->parents_topology;
  if (impl_->job == nullptr) return impl_->NotInitialized();
  return impl_->job->topology();
}

void Runtime::Submit(Request request, DoneCallback done, double drive_for_s) {
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
  job.engine().Submit(std::move(request), std::move(done), drive_for_s);
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

Status Runtime::Run(RepeatedCall& call,
                    const std::function<void()>& before_waiting) {
  std::shared_lock<std::shared_mutex> lock(impl_->mutex, std::try_to_lock);
  std::unique_ptr<BegunCall> begun;
  if (lock.owns_lock() && impl_->job != nullptr &&
      IsOfMembership(call.request().communicator_id,
                     impl_->job->communicator_base()) &&
      impl_->job->engine().RunAtOnce(call, &begun)) {
    return Status::Ok();
  }
  before_waiting();
  if (begun == nullptr) {
    if (lock.owns_lock()) lock.unlock();
    return Run(call.request());
  }
  return impl_->WithJob(std::move(lock), [&](Job& job) {
    return job.engine().Finish(std::move(begun));
  });
}

StatusOr<int> Runtime::FirstAwaited(
    std::vector<std::pair<int, std::string>> names) {
  return impl_->WithJob([&](Job& job) -> StatusOr<int> {
    for (auto& [communicator_id, name] : names) {
      if (!IsOfMembership(communicator_id, job.communicator_base())) {
        return Outlived(name, job.generation());
      }
      communicator_id = LocalCommunicatorId(communicator_id);
    }
    return job.engine().FirstAwaited(names);
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

Status Runtime::GiveUpStep(int communicator_id, const std::string& why,
                           const GiveUpOptions& options) {
  return impl_->WithJob([&](Job& job) {
    if (IsOfMembership(communicator_id, job.communicator_base())) {
      job.engine().GiveUpStep(LocalCommunicatorId(communicator_id), why,
                              options);
    }
    return Status::Ok();
  });
}

Status Runtime::ForgetGivenUp(int communicator_id) {
  return impl_->WithJob([&](Job& job) {
    if (IsOfMembership(communicator_id, job.communicator_base())) {
      job.engine().ForgetGivenUp(LocalCommunicatorId(communicator_id));
    }
    return Status::Ok();
  });
}

void Runtime::InterruptAll() { Interrupt(Engine::kEveryCommunicator); }

StatusOr<int> Runtime::AddCommunicator(const std::vector<int>& ranks) {
  return impl_->Change("add_process_set()",
                       [&](Job& job) { return job.AddCommunicator(ranks); });
}

Status Runtime::RemoveCommunicator(int communicator_id) {
  // Of another membership: no communicator of this one, as all ranks agree.
  return impl_->Change("remove_process_set()", [&](Job& job) {
    return job.RemoveCommunicator(
        IsOfMembership(communicator_id, job.communicator_base())
            ? LocalCommunicatorId(communicator_id)
            : communicator_id);
  });
}

Status Runtime::JoinCommunicator(int id, const std::vector<int>& ranks) {
  return impl_->WithJob(
      [&](Job& job) { return job.JoinCommunicator(id, ranks); });
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
  return impl_->Change("set_tuning()",
                       [&](Job& job) { return job.SetTuning(tuning); });
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
    const Mesh& mesh = job.engine().mesh();
    return mesh.SharesMemoryWith(rank) ? "shm" : mesh.transport_name();
  });
}

}  // namespace ring_keras
