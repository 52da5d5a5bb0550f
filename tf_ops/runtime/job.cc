#include "tf_ops/runtime/job.h"

#include <algorithm>
#include <numeric>
#include <system_error>
#include <utility>

#include "tf_ops/cuda/ranges.h"

namespace ring_keras {
namespace {

constexpr char kSameSetsAdvice[] =
    "Make the same process sets in the same order on every rank.";

// How long a rank that leaves waits for its driver, which is quick unless the
// machine is not.
constexpr double kTellStopS = 10;
// The same for its peers to take what it has for them.
constexpr double kSendLastS = 1;

Status CheckRanks(const std::vector<int>& ranks, int size) {
  const bool ascending =
      std::adjacent_find(ranks.begin(), ranks.end(),
                         [](int a, int b) { return a >= b; }) == ranks.end();
  if (!ranks.empty() && ascending && ranks.front() >= 0 &&
      ranks.back() < size) {
    return Status::Ok();
  }
  return Status(
      StatusCode::kInvalidArgument, ErrorCode::kBadProcessSet,
      StrCat("a process set needs one or more different ranks from 0 to ",
             size - 1, " in ascending order, got ",
             DebugString(Shape(ranks.begin(), ranks.end())), "."));
}

EngineOptions MakeEngineOptions(const InitOptions& options,
                                std::vector<std::string> rank_names) {
  EngineOptions engine_options;
  engine_options.collective_timeout_s = options.collective_timeout_s;
  engine_options.stall_warning_s = options.stall_warning_s;
  engine_options.rank_names = std::move(rank_names);
  engine_options.trace_dir = options.trace_dir;
  return engine_options;
}

}  // namespace

StatusOr<std::unique_ptr<Job>> Job::Start(const InitOptions& options) {
  try {
    StatusOr<Membership> membership = Bootstrap(options);
    RING_KERAS_RETURN_IF_ERROR(membership.status());
    return std::unique_ptr<Job>(
        new Job(std::move(membership.value()), options));
  } catch (const std::system_error& error) {
    return Status(
        StatusCode::kResourceExhausted, ErrorCode::kNoThread,
        StrCat("rank ", options.rank, " cannot start a thread: ", error.what(),
               ". Allow it more processes (`ulimit -u`, or those of "
               "its control group) or memory."));
  }
}

Job::Job(Membership membership, const InitOptions& options)
    : generation_(membership.generation),
      communicator_base_(CommunicatorBase(membership.generation)),
      topology_(membership.topology),
      engine_(std::make_unique<Engine>(
          MakeEngineOptions(options, std::move(membership.rank_names)),
          std::move(membership.mesh))),
      store_(std::move(membership.store)),
      tuning_(options.tuning) {
  std::vector<int> everyone(static_cast<size_t>(topology_.size));
  std::iota(everyone.begin(), everyone.end(), 0);
  engine_->AddCommunicator(0, everyone, tuning_);
  communicators_ = {{0, std::move(everyone)}};
  if (store_ == nullptr) return;
  Engine* engine = engine_.get();
  store_->Watch(
      [engine](const RankEvent& event) { engine->OnRankEvent(event); });
}

Job::~Job() {
  // The store's thread may be telling the engine something: it ends first.
  store_.reset();
}

void Job::Leave(const std::string& reason) {
  const int pending = engine_->pending_count();
  engine_->Stop(reason);
  if (store_ == nullptr) return;
  // What has ended here may not have ended there. After the store's word, peers
  // in shared memory expect nothing more; and one that leaves because of it is
  // not to be heard of before what is pending here has said why it ends.
  engine_->AwaitStopTold(kTellStopS);
  engine_->AwaitSent(kSendLastS);
  std::string why = reason;
  if (pending > 0) {
    why += StrCat(", with ", pending, " collectives still pending");
  }
  // The peer may hear of it here only: a connection that is reset takes with
  // it what had not been read, such as TLS's last word.
  const std::string link = engine_->broken_link();
  if (!link.empty()) why += StrCat(", after ", link);
  store_->Leave(why);
}

Status Job::Agree(const std::string& what, const std::vector<int64_t>& values,
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
  RING_KERAS_RETURN_IF_ERROR(engine_->Run(std::move(request)));
  const size_t count = values.size();
  for (size_t rank = 0; rank * count < gathered.size(); ++rank) {
    const Shape theirs(gathered.begin() + rank * count,
                       gathered.begin() + (rank + 1) * count);
    const Shape first(gathered.begin(), gathered.begin() + count);
    if (theirs == first) continue;
    return Status(StatusCode::kRankMismatch, ErrorCode::kProcessSetsDiffer,
                  StrCat(what, ": rank 0 has ", DebugString(first), ", rank ",
                         rank, " has ", DebugString(theirs), ". ", advice));
  }
  return Status::Ok();
}

Status Job::CheckNewRanks(const std::vector<int>& ranks) const {
  RING_KERAS_RETURN_IF_ERROR(CheckRanks(ranks, topology_.size));
  for (const auto& [id, existing] : communicators_) {
    if (id < kFirstOfMembers && existing == ranks) {
      return Status(
          StatusCode::kInvalidArgument, ErrorCode::kBadProcessSet,
          StrCat("process set ", id, " has the ranks ",
                 DebugString(Shape(ranks.begin(), ranks.end())), " already."));
    }
  }
  if (next_communicator_id_ == kFirstOfMembers) {
    return Status(StatusCode::kResourceExhausted, ErrorCode::kBadProcessSet,
                  StrCat("a job can make ", kFirstOfMembers - 1,
                         " process sets, and this one has. Keep those that "
                         "are needed again instead of removing them."));
  }
  return Status::Ok();
}

StatusOr<int> Job::AddCommunicator(const std::vector<int>& ranks) {
  std::lock_guard<std::mutex> agreement_lock(agreement_mutex_);
  // First, so that what is wrong is wrong on every rank alike: a rank that
  // returned here before the others know would leave them waiting.
  RING_KERAS_RETURN_IF_ERROR(
      Agree("add_process_set", std::vector<int64_t>(ranks.begin(), ranks.end()),
            kSameSetsAdvice));
  std::optional<int> device;
  int id = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    RING_KERAS_RETURN_IF_ERROR(CheckNewRanks(ranks));
    id = next_communicator_id_++;
    engine_->AddCommunicator(id, ranks, tuning_);
    communicators_[id] = ranks;
    device = cuda_device_;
  }
  // Nobody uses it before every rank has it: what comes for one that is not
  // there is dropped.
  if (device && ranks.size() > 1) {
    RING_KERAS_RETURN_IF_ERROR(engine_->SplitDevices(id, *device));
  } else {
    Request added;
    added.kind = CollectiveKind::kBarrier;
    added.name = "ring_keras/added_process_set";
    RING_KERAS_RETURN_IF_ERROR(engine_->Run(std::move(added)));
  }
  return id;
}

Status Job::RemoveCommunicator(int id) {
  std::lock_guard<std::mutex> agreement_lock(agreement_mutex_);
  RING_KERAS_RETURN_IF_ERROR(
      Agree("remove_process_set", {id}, kSameSetsAdvice));
  if (id == 0) {
    return Status(StatusCode::kInvalidArgument, ErrorCode::kBadProcessSet,
                  "process set 0 holds every rank and cannot be removed.");
  }
  std::lock_guard<std::mutex> lock(mutex_);
  if (communicators_.erase(id) == 0) {
    return Status(StatusCode::kInvalidArgument, ErrorCode::kBadProcessSet,
                  StrCat("process set ", id, " does not exist."));
  }
  engine_->RemoveCommunicator(id);
  return Status::Ok();
}

Status Job::JoinCommunicator(int id, const std::vector<int>& ranks) {
  RING_KERAS_RETURN_IF_ERROR(CheckRanks(ranks, topology_.size));
  std::lock_guard<std::mutex> lock(mutex_);
  if (id < kFirstOfMembers || id >= kCommunicatorsPerGeneration ||
      communicators_.count(id) != 0) {
    return Status(StatusCode::kInvalidArgument, ErrorCode::kBadProcessSet,
                  StrCat("expected a new number from ", kFirstOfMembers, " to ",
                         kCommunicatorsPerGeneration - 1,
                         " for a communicator of some ranks, got ", id, "."));
  }
  if (std::find(ranks.begin(), ranks.end(), topology_.rank) == ranks.end()) {
    return Status(StatusCode::kInvalidArgument, ErrorCode::kBadProcessSet,
                  StrCat("rank ", topology_.rank, " is not among the ranks ",
                         DebugString(Shape(ranks.begin(), ranks.end())), "."));
  }
  engine_->AddCommunicator(id, ranks, tuning_);
  communicators_[id] = ranks;
  return Status::Ok();
}

StatusOr<std::vector<int>> Job::CommunicatorRanks(int id) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = communicators_.find(id);
  if (found == communicators_.end()) {
    return Status(StatusCode::kInvalidArgument, ErrorCode::kBadProcessSet,
                  StrCat("there is no process set ", id, "."));
  }
  return found->second;
}

Status Job::SetTuning(const Tuning& tuning) {
  std::lock_guard<std::mutex> agreement_lock(agreement_mutex_);
  std::vector<int64_t> values;
  for (const auto& [name, value] : kTuningSettings) {
    const std::optional<size_t>& setting = tuning.*value;
    values.push_back(setting ? static_cast<int64_t>(*setting) : -1);
  }
  RING_KERAS_RETURN_IF_ERROR(Agree("tuning", values, "Tune every rank alike."));
  std::lock_guard<std::mutex> lock(mutex_);
  engine_->SetTuning(tuning);
  tuning_ = tuning;
  return Status::Ok();
}

Tuning Job::tuning() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return tuning_;
}

void Job::UseCudaDevice(int device) {
  cuda::ShowRanges();
  std::lock_guard<std::mutex> lock(mutex_);
  cuda_device_ = device;
}

}  // namespace ring_keras
