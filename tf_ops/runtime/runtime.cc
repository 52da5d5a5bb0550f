#include "tf_ops/runtime/runtime.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <shared_mutex>
#include <utility>

#include "tf_ops/cuda/library_paths.h"
#include "tf_ops/runtime/engine.h"
#include "tf_ops/runtime/join.h"

namespace ring_keras {
namespace {

constexpr char kSameSetsAdvice[] =
    "Make the same process sets in the same order on every rank.";

Status CheckRanks(const std::vector<int>& ranks, int size) {
  const bool ascending =
      std::adjacent_find(ranks.begin(), ranks.end(),
                         [](int a, int b) { return a >= b; }) == ranks.end();
  if (!ranks.empty() && ascending && ranks.front() >= 0 &&
      ranks.back() < size) {
    return Status::Ok();
  }
  return Status(
      StatusCode::kInvalidArgument,
      StrCat("a process set needs one or more different ranks from 0 to ",
             size - 1, " in ascending order, got ",
             DebugString(Shape(ranks.begin(), ranks.end())), "."));
}

// A handler of signals may call anything, also shutdown(): from within a Run()
// that can only begin it, for the engine is in use until that Run() returns.
struct ThreadState {
  int runs = 0;
  bool has_shut_down = false;
};
thread_local ThreadState this_thread;

}  // namespace

struct Runtime::Impl {
  // Shared by calls, exclusive for Init and Shutdown.
  mutable std::shared_mutex mutex;
  std::unique_ptr<Engine> engine;
  Membership membership;  // Its mesh has gone to the engine.
  int cuda_device = InitOptions::kNoDevice;
  // Between Init and Shutdown; a forked child may read `membership.topology`
  // then, without the mutex.
  std::atomic<bool> joined{false};
  // In a forked child: the place of the rank it was forked from.
  std::optional<Topology> parents_place;

  mutable std::mutex communicators_mutex;  // Guards what follows.
  std::map<int, std::vector<int>> communicators;
  int next_communicator_id = 1;
  Tuning tuning;

  // Why there is no engine.
  Status NotInitialized() const;
  // Every rank gives the same values, or an error on every rank, with `advice`.
  Status Agree(const std::string& what, const std::vector<int64_t>& values,
               const std::string& advice);
};

Runtime::Runtime()
    : impl_(std::make_unique<Impl>()), in_child_([this] { ForgetInChild(); }) {}
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
  if (parents->parents_place.has_value()) {  // Forked twice.
    impl_->parents_place = parents->parents_place;
  } else if (parents->joined) {
    impl_->parents_place = parents->membership.topology;
  }
}

Status Runtime::Impl::NotInitialized() const {
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
  if (impl_->engine != nullptr) {
    return Status(StatusCode::kInvalidArgument,
                  "ring_keras is initialized already.");
  }
  if (impl_->parents_place.has_value()) return impl_->NotInitialized();
  ConfigureLogging(options.size > 1 ? StrCat("rank ", options.rank) : "",
                   options.log_level);
  cuda::SetLibraryPath(options.cuda_library_path);
  StatusOr<Membership> joined = Join(options);
  RING_KERAS_RETURN_IF_ERROR(joined.status());
  impl_->membership = std::move(joined.value());
  EngineOptions engine_options;
  engine_options.collective_timeout_s = options.collective_timeout_s;
  engine_options.stall_warning_s = options.stall_warning_s;
  engine_options.rank_titles = impl_->membership.rank_titles;
  impl_->engine = std::make_unique<Engine>(engine_options,
                                           std::move(impl_->membership.mesh));
  std::vector<int> everyone(options.size);
  std::iota(everyone.begin(), everyone.end(), 0);
  impl_->tuning = options.tuning;
  impl_->cuda_device = options.cuda_device;
  impl_->engine->AddCommunicator(0, everyone, impl_->tuning);
  impl_->communicators = {{0, everyone}};
  impl_->next_communicator_id = 1;
  if (impl_->membership.store != nullptr) {
    Engine* engine = impl_->engine.get();
    impl_->membership.store->Watch(
        [engine](const RankEvent& event) { engine->OnRankEvent(event); });
  }
  impl_->joined = true;
  return Status::Ok();
}

void Runtime::Shutdown(const std::string& reason) {
  // Pending Run() calls hold the lock shared until the engine ends them.
  {
    std::shared_lock<std::shared_mutex> lock(impl_->mutex);
    impl_->joined = false;
    const int pending =
        impl_->engine != nullptr ? impl_->engine->pending_count() : 0;
    if (impl_->membership.store != nullptr) {
      impl_->membership.store->Leave(
          pending == 0 ? reason
                       : StrCat(reason, ", with ", pending,
                                " collectives still pending"));
    }
    if (impl_->engine != nullptr) impl_->engine->Stop();
  }
  if (this_thread.runs > 0) {
    this_thread.has_shut_down = true;
  } else {
    End();
  }
}

void Runtime::End() {
  std::unique_lock<std::shared_mutex> lock(impl_->mutex);
  // The store's thread may be telling the engine something: it ends first.
  impl_->membership.store.reset();
  impl_->engine.reset();
  impl_->membership = Membership();
  impl_->parents_place.reset();
  std::lock_guard<std::mutex> communicators_lock(impl_->communicators_mutex);
  impl_->communicators.clear();
}

bool Runtime::initialized() const {
  std::shared_lock<std::shared_mutex> lock(impl_->mutex);
  return impl_->engine != nullptr || impl_->parents_place.has_value();
}

StatusOr<Topology> Runtime::GetTopology() const {
  std::shared_lock<std::shared_mutex> lock(impl_->mutex);
  if (impl_->parents_place.has_value()) return *impl_->parents_place;
  if (impl_->engine == nullptr) return impl_->NotInitialized();
  return impl_->membership.topology;
}

void Runtime::Submit(Request request, DoneCallback done, double patience_s) {
  std::shared_lock<std::shared_mutex> lock(impl_->mutex);
  if (impl_->engine == nullptr) {
    lock.unlock();
    done(impl_->NotInitialized());
    return;
  }
  impl_->engine->Submit(std::move(request), std::move(done), patience_s);
}

Status Runtime::Run(Request request) {
  ++this_thread.runs;
  const Status status = [&] {
    std::shared_lock<std::shared_mutex> lock(impl_->mutex);
    if (impl_->engine == nullptr) return impl_->NotInitialized();
    return impl_->engine->Run(std::move(request));
  }();
  if (--this_thread.runs == 0 && this_thread.has_shut_down) {
    this_thread.has_shut_down = false;
    End();
  }
  return status;
}

void Runtime::Interrupt(int communicator_id) {
  std::shared_lock<std::shared_mutex> lock(impl_->mutex);
  if (impl_->engine != nullptr) impl_->engine->Interrupt(communicator_id);
}

void Runtime::InterruptAll() { Interrupt(Engine::kEveryCommunicator); }

Status Runtime::Impl::Agree(const std::string& what,
                            const std::vector<int64_t>& values,
                            const std::string& advice) {
  std::vector<int64_t> gathered;
  Request request;
  request.kind = CollectiveKind::kAllgather;
  request.name = "ring_keras/" + what;
  request.dtype = DataType::kInt64;
  request.inputs = {{values.data(), {1, static_cast<int64_t>(values.size())}}};
  request.allocate_output = [&](const Shape& shape) -> StatusOr<void*> {
    gathered.resize(ElementCount(shape));
    return static_cast<void*>(gathered.data());
  };
  RING_KERAS_RETURN_IF_ERROR(engine->Run(std::move(request)));
  const size_t count = values.size();
  for (size_t rank = 0; rank * count < gathered.size(); ++rank) {
    const Shape theirs(gathered.begin() + rank * count,
                       gathered.begin() + (rank + 1) * count);
    const Shape first(gathered.begin(), gathered.begin() + count);
    if (theirs == first) continue;
    return Status(StatusCode::kRankMismatch,
                  StrCat(what, ": rank 0 has ", DebugString(first), ", rank ",
                         rank, " has ", DebugString(theirs), ". ", advice));
  }
  return Status::Ok();
}

StatusOr<int> Runtime::AddCommunicator(const std::vector<int>& ranks) {
  std::shared_lock<std::shared_mutex> lock(impl_->mutex);
  if (impl_->engine == nullptr) return impl_->NotInitialized();
  RING_KERAS_RETURN_IF_ERROR(
      CheckRanks(ranks, impl_->membership.topology.size));
  std::lock_guard<std::mutex> communicators_lock(impl_->communicators_mutex);
  for (const auto& [id, existing] : impl_->communicators) {
    if (existing == ranks) {
      return Status(
          StatusCode::kInvalidArgument,
          StrCat("process set ", id, " has the ranks ",
                 DebugString(Shape(ranks.begin(), ranks.end())), " already."));
    }
  }
  RING_KERAS_RETURN_IF_ERROR(impl_->Agree(
      "add_process_set", std::vector<int64_t>(ranks.begin(), ranks.end()),
      kSameSetsAdvice));
  const int id = impl_->next_communicator_id++;
  impl_->engine->AddCommunicator(id, ranks, impl_->tuning);
  if (impl_->membership.all_have_gpus && ranks.size() > 1) {
    impl_->engine->SplitDevices(id, impl_->cuda_device);
  }
  impl_->communicators[id] = ranks;
  return id;
}

Status Runtime::RemoveCommunicator(int communicator_id) {
  std::shared_lock<std::shared_mutex> lock(impl_->mutex);
  if (impl_->engine == nullptr) return impl_->NotInitialized();
  std::lock_guard<std::mutex> communicators_lock(impl_->communicators_mutex);
  if (communicator_id == 0 ||
      impl_->communicators.count(communicator_id) == 0) {
    return Status(
        StatusCode::kInvalidArgument,
        StrCat("process set ", communicator_id,
               communicator_id == 0 ? " holds every rank and cannot be removed."
                                    : " does not exist."));
  }
  RING_KERAS_RETURN_IF_ERROR(
      impl_->Agree("remove_process_set", {communicator_id}, kSameSetsAdvice));
  impl_->engine->RemoveCommunicator(communicator_id);
  impl_->communicators.erase(communicator_id);
  return Status::Ok();
}

StatusOr<std::vector<int>> Runtime::CommunicatorRanks(
    int communicator_id) const {
  std::shared_lock<std::shared_mutex> lock(impl_->mutex);
  if (impl_->engine == nullptr) return impl_->NotInitialized();
  std::lock_guard<std::mutex> communicators_lock(impl_->communicators_mutex);
  const auto found = impl_->communicators.find(communicator_id);
  if (found == impl_->communicators.end()) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("there is no process set ", communicator_id, "."));
  }
  return found->second;
}

StatusOr<std::shared_ptr<void>> Runtime::AllocateBuffer(size_t nbytes) {
  std::shared_lock<std::shared_mutex> lock(impl_->mutex);
  if (impl_->engine == nullptr) return impl_->NotInitialized();
  Mesh& mesh = impl_->engine->mesh();
  if (mesh.has_segment()) return mesh.buffers().Allocate(nbytes);
  void* memory = std::calloc(std::max<size_t>(nbytes, 1), 1);
  if (memory == nullptr) {
    return Status(StatusCode::kResourceExhausted,
                  StrCat("no memory for a buffer of ", nbytes, " bytes."));
  }
  return std::shared_ptr<void>(memory, std::free);
}

Status Runtime::SetTuning(const Tuning& tuning) {
  std::shared_lock<std::shared_mutex> lock(impl_->mutex);
  if (impl_->engine == nullptr) return impl_->NotInitialized();
  std::lock_guard<std::mutex> communicators_lock(impl_->communicators_mutex);
  std::vector<int64_t> values;
  for (const auto& [name, value] : kTuningSettings) {
    values.push_back(static_cast<int64_t>(tuning.*value));
  }
  RING_KERAS_RETURN_IF_ERROR(
      impl_->Agree("tuning", values, "Tune every rank alike."));
  impl_->engine->SetTuning(tuning);
  impl_->tuning = tuning;
  return Status::Ok();
}

StatusOr<Tuning> Runtime::GetTuning() const {
  std::shared_lock<std::shared_mutex> lock(impl_->mutex);
  if (impl_->engine == nullptr) return impl_->NotInitialized();
  std::lock_guard<std::mutex> communicators_lock(impl_->communicators_mutex);
  return impl_->tuning;
}

StatusOr<std::string> Runtime::TransportTo(int rank) const {
  std::shared_lock<std::shared_mutex> lock(impl_->mutex);
  if (impl_->engine == nullptr) return impl_->NotInitialized();
  const Topology& topology = impl_->membership.topology;
  if (rank < 0 || rank >= topology.size) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("expected a rank from 0 to ", topology.size - 1,
                         ", got ", rank, "."));
  }
  if (rank == topology.rank) return std::string("self");
  return std::string(impl_->engine->mesh().SharesMemoryWith(rank) ? "shm"
                                                                  : "tcp");
}

}  // namespace ring_keras
