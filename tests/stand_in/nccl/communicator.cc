#include "tests/stand_in/nccl/communicator.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <thread>
#include <utility>

#include "tests/stand_in/device/device.h"
#include "tests/stand_in/device/registry.h"
#include "tests/stand_in/stand_in.h"

namespace ring_keras::stand_in {
namespace {

// Never destroyed, as the streams.
Registry<Communicator>& Communicators() {
  static auto* communicators = new Registry<Communicator>;
  return *communicators;
}

bool NoticesDeadPeers() {
  static const bool notices = [] {
    const char* text = std::getenv("STAND_IN_DEAD_PEER");
    return text != nullptr && std::string(text) == "error";
  }();
  return notices;
}

std::string Variable(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

}  // namespace

Communicator::Communicator(RegionName name, int rank, int size, int device,
                           bool blocking)
    : name_(name),
      rank_(rank),
      size_(size),
      device_(device),
      blocking_(blocking) {}

Communicator::~Communicator() {
  for (const int process : peer_processes_) close(process);
}

int Communicator::Run(std::function<int()> job) {
  {
    std::lock_guard lock(mutex_);
    ++running_;
    state_ = kNcclInProgress;
  }
  auto run = [self = shared_from_this(), job = std::move(job)] {
    const int result = job();
    std::lock_guard lock(self->mutex_);
    // An error that came meanwhile stays.
    int expected = kNcclInProgress;
    self->state_.compare_exchange_strong(expected, result);
    --self->running_;
    self->changed_.notify_all();
    return result;
  };
  if (blocking_) return run();
  std::thread(std::move(run)).detach();
  return kNcclInProgress;
}

int Communicator::Connect(const Communicator* parent) {
  parent_ = parent;
  {
    auto region = Region::Open(name_);
    std::lock_guard lock(mutex_);
    region_ = std::move(region);
  }
  if (region_ == nullptr) {
    Fail(kNcclRemoteError, "who made the unique id is gone");
    return kNcclRemoteError;
  }
  Region& region = *region_;
  int32_t expected_size = 0;
  if (!region->size.compare_exchange_strong(expected_size, size_) &&
      expected_size != size_) {
    Fail(kNcclInvalidArgument, "ranks differ in the number of ranks");
    return kNcclInvalidArgument;
  }
  RankCard& card = region->ranks[rank_];
  if (card.taken.exchange(1) != 0) {
    Fail(kNcclInvalidUsage, "two ranks of the same number");
    return kNcclInvalidUsage;
  }
  card.pid = getpid();
  card.device = PhysicalDevice(device_);
  card.host = std::hash<std::string>()(Variable("NCCL_HOSTID"));
  card.present = 1;
  region.RingAll();
  const bool all_here = WaitFor([&] {
    for (int rank = 0; rank < size_; ++rank) {
      if (region->ranks[rank].present == 0) return false;
    }
    return true;
  });
  if (!all_here) return kNcclInternalError;
  parent_ = nullptr;
  Region::Release(name_);
  if (!CheckDevices()) return kNcclInvalidUsage;
  if (NoticesDeadPeers()) {
    for (int rank = 0; rank < size_; ++rank) {
      const int process =
          static_cast<int>(syscall(SYS_pidfd_open, region->ranks[rank].pid, 0));
      if (process >= 0) peer_processes_.push_back(process);
    }
  }
  return kNcclSuccess;
}

int Communicator::ConnectPart(const Communicator& parent) {
  const int result = Connect(&parent);
  state_ = result;
  return result;
}

// Two ranks share a device only where NCCL is told to let them.
bool Communicator::CheckDevices() {
  if (Variable("NCCL_MULTI_RANK_GPU_ENABLE") == "1") return true;
  const RankCard* ranks = (*region_)->ranks;
  for (int a = 0; a < size_; ++a) {
    for (int b = a + 1; b < size_; ++b) {
      if (ranks[a].device == ranks[b].device &&
          ranks[a].host == ranks[b].host) {
        Fail(kNcclInvalidUsage,
             "Duplicate GPU detected : rank " + std::to_string(a) +
                 " and rank " + std::to_string(b) + " both on CUDA device " +
                 std::to_string(ranks[a].device));
        return false;
      }
    }
  }
  return true;
}

int Communicator::Split(int color, int key, RegionName* part_name,
                        int* part_rank, int* part_size) {
  const uint64_t number = ++split_count_;
  Region& region = *region_;
  const auto card_of = [&](int rank) -> SplitCard& {
    return region->ranks[rank].splits[number % 2];
  };
  SplitCard& mine = card_of(rank_);
  mine.color = color;
  mine.key = key;
  mine.said = number;
  region.RingAll();
  const bool all_said = WaitFor([&] {
    for (int rank = 0; rank < size_; ++rank) {
      if (card_of(rank).said < number) return false;
    }
    return true;
  });
  if (!all_said) return kNcclInternalError;
  std::vector<std::pair<int, int>> part;  // key, rank
  for (int rank = 0; rank < size_; ++rank) {
    if (card_of(rank).color == color) {
      part.emplace_back(card_of(rank).key, rank);
    }
  }
  std::sort(part.begin(), part.end());
  if (color == kNcclSplitNoColor) return kNcclSuccess;
  const int first = part.front().second;
  if (first == rank_) {
    if (!Region::Create(&mine.region)) return kNcclSystemError;
    mine.region_made = number;
    region.RingAll();
  }
  if (!WaitFor([&] { return card_of(first).region_made >= number; })) {
    return kNcclInternalError;
  }
  *part_name = card_of(first).region;
  *part_size = static_cast<int>(part.size());
  *part_rank = static_cast<int>(
      std::find(part.begin(), part.end(), std::pair(key, rank_)) -
      part.begin());
  return kNcclSuccess;
}

int Communicator::Finalize() {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return work_ == 0 || aborted_; });
  }
  Region& region = *region_;
  region->ranks[rank_].finalized = 1;
  region.RingAll();
  const bool all_done = WaitFor([&] {
    for (int rank = 0; rank < size_; ++rank) {
      if (region->ranks[rank].finalized == 0) return false;
    }
    return true;
  });
  finalized_ = all_done;
  return all_done ? kNcclSuccess : kNcclInternalError;
}

void Communicator::Abort() {
  std::unique_lock lock(mutex_);
  aborted_ = true;
  changed_.notify_all();
  while (running_ > 0) {
    if (region_ != nullptr) region_->Ring(rank_);
    changed_.wait_for(lock, std::chrono::milliseconds(1));
  }
}

void Communicator::Fail(int error, const std::string& text) {
  std::lock_guard lock(mutex_);
  state_ = error;
  last_error_ = text;
}

void Communicator::SetLastError(const std::string& text) {
  std::lock_guard lock(mutex_);
  last_error_ = text;
}

std::string Communicator::last_error() {
  std::lock_guard lock(mutex_);
  return last_error_;
}

bool Communicator::WaitFor(const std::function<bool()>& ready) {
  while (true) {
    const uint32_t seen = Doorbell();
    if (ready()) return true;
    if (!Sleep(seen)) return false;
  }
}

bool Communicator::MustStop() const {
  return aborted_ || (parent_ != nullptr && parent_->aborted_);
}

bool Communicator::Sleep(uint32_t seen) {
  if (MustStop()) return false;
  NoticeDeadPeers();
  region_->Sleep(rank_, seen);
  return !MustStop();
}

uint32_t Communicator::Doorbell() const {
  return (*region_)->ranks[rank_].doorbell;
}

void Communicator::NoticeDeadPeers() {
  for (const int process : peer_processes_) {
    pollfd ended = {process, POLLIN, 0};
    if (poll(&ended, 1, 0) > 0 && state_ != kNcclRemoteError) {
      Fail(kNcclRemoteError, "a remote process exited");
    }
  }
}

void Communicator::BeginWork() {
  std::lock_guard lock(mutex_);
  ++running_;
  ++work_;
}

void Communicator::EndWork() {
  std::lock_guard lock(mutex_);
  --running_;
  --work_;
  changed_.notify_all();
}

bool Communicator::IsFirstOfItsKind(const std::string& kind) {
  std::lock_guard lock(mutex_);
  return kinds_.insert(kind).second;
}

int Communicator::AddPreMulSum(Scalar scalar) {
  std::lock_guard lock(mutex_);
  pre_mul_sums_[next_op_] = scalar;
  return next_op_++;
}

bool Communicator::RemoveOp(int op) {
  std::lock_guard lock(mutex_);
  return pre_mul_sums_.erase(op) == 1;
}

std::optional<Scalar> Communicator::FindPreMulSum(int op) {
  std::lock_guard lock(mutex_);
  const auto found = pre_mul_sums_.find(op);
  if (found == pre_mul_sums_.end()) return std::nullopt;
  return found->second;
}

void* Communicator::Register(const void* memory) {
  std::lock_guard lock(mutex_);
  void* handle = reinterpret_cast<void*>(++registration_count_);
  registrations_[handle] = memory;
  return handle;
}

bool Communicator::Deregister(void* handle) {
  std::lock_guard lock(mutex_);
  return registrations_.erase(handle) == 1;
}

bool Communicator::IsRegistered(const void* memory) {
  std::lock_guard lock(mutex_);
  return std::any_of(
      registrations_.begin(), registrations_.end(),
      [&](const auto& registration) { return registration.second == memory; });
}

int64_t Communicator::RegistrationCount() {
  std::lock_guard lock(mutex_);
  return static_cast<int64_t>(registrations_.size());
}

std::shared_ptr<Communicator> FindCommunicator(ncclComm* handle) {
  return Communicators().Find(handle);
}

ncclComm* AddCommunicator(std::shared_ptr<Communicator> communicator) {
  return static_cast<ncclComm*>(Communicators().Add(std::move(communicator)));
}

std::shared_ptr<Communicator> RemoveCommunicator(ncclComm* handle) {
  return Communicators().Remove(handle);
}

std::vector<std::shared_ptr<Communicator>> AllCommunicators() {
  return Communicators().All();
}

}  // namespace ring_keras::stand_in

using ring_keras::stand_in::Communicators;

void RingKerasStandInFailCommunicators(int error) {
  for (const auto& communicator : Communicators().All()) {
    communicator->Fail(error, "a test asked for this error");
  }
}

int64_t RingKerasStandInCommunicators() { return Communicators().Count(); }

int64_t RingKerasStandInRegistrations() {
  int64_t count = 0;
  for (const auto& communicator : Communicators().All()) {
    count += communicator->RegistrationCount();
  }
  return count;
}
