#include "tf_ops/torch/roll_call.h"

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "tf_ops/common/status.h"

namespace ring_keras::torch_backend {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr char kAllCame[] = "all came";
// How long to wait before the store is asked again: the first and the longest.
constexpr milliseconds kFirstPause{1};
constexpr milliseconds kLongestPause{50};
constexpr milliseconds kTimeToRead{10'000};
constexpr milliseconds kLaterThanFirst{10'000};

std::string Listed(const std::vector<int>& ranks) {
  std::string list;
  for (const int rank : ranks) {
    list += StrCat(list.empty() ? "" : ", ", rank);
  }
  return StrCat(ranks.size() == 1 ? "Rank " : "Ranks ", list);
}

}  // namespace

RollCall::RollCall(int rank, int size, c10::intrusive_ptr<c10d::Store> store,
                   std::string prefix)
    : rank_(rank),
      size_(size),
      store_(std::move(store)),
      prefix_(std::move(prefix)) {}

// The words are those of gloo's, which programs may look for.
void RollCall::Call(milliseconds timeout, bool wait_all_ranks) {
  ++calls_;
  const std::string verdict = rank_ == 0
                                  ? VerdictOfFirst(timeout, wait_all_ranks)
                                  : VerdictOfOther(timeout);
  if (rank_ == 0) {
    LetOthersRead();
  } else {
    store_->deleteKey(KeyOf(calls_, rank_));
  }
  if (verdict == kAllCame) {
    // All who have come to this call have read that of the one before.
    if (rank_ == 0 && calls_ > 1) store_->deleteKey(VerdictOf(calls_ - 1));
    return;
  }
  TORCH_CHECK_WITH(DistBackendError, rank_ != 0, "[RK163] ", verdict);
  TORCH_CHECK_WITH(
      DistBackendError, false, "[RK163] Rank ", rank_,
      " successfully reached monitoredBarrier, but received errors while "
      "waiting for send/recv from rank 0: ",
      verdict);
}

std::string RollCall::VerdictOfFirst(milliseconds timeout,
                                     bool wait_all_ranks) {
  const auto until = steady_clock::now() + timeout;
  std::vector<int> missing;
  for (int rank = 1; rank < size_; ++rank) {
    if (IsThere(KeyOf(calls_, rank), until)) continue;
    // Another rank may have given up before this one came.
    if (store_->check({VerdictOf(calls_)})) break;
    missing.push_back(rank);
    if (!wait_all_ranks) break;
  }
  if (missing.empty()) return Settle(kAllCame);
  if (timeout.count() <= 0) {
    return Settle("Rank 0 timed out in monitoredBarrier after 0 ms.");
  }
  return Settle(StrCat(Listed(missing), " failed to pass monitoredBarrier in ",
                       timeout.count(), " ms"));
}

std::string RollCall::VerdictOfOther(milliseconds timeout) {
  // The first rank, which knows who is missing, is to be the first to say so.
  timeout += std::min(timeout, kLaterThanFirst);
  const auto until = steady_clock::now() + timeout;
  store_->set(KeyOf(calls_, rank_), std::string("here"));
  IsThere(VerdictOf(calls_), until);
  // Unless it is settled.
  return Settle(StrCat("Rank ", rank_, " waited ", timeout.count(),
                       " ms, and rank 0 had not said that all came"));
}

// The store may be in this process, which may end now.
void RollCall::LetOthersRead() {
  const auto until = steady_clock::now() + kTimeToRead;
  for (int rank = 1; rank < size_; ++rank) {
    milliseconds pause = kFirstPause;
    while (store_->check({KeyOf(calls_, rank)}) &&
           steady_clock::now() < until) {
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, kLongestPause);
    }
  }
}

// What it is that has been settled first.
std::string RollCall::Settle(const std::string& verdict) {
  return store_->compareSet(VerdictOf(calls_), "", verdict);
}

// Whether it comes before `until`, and before there is a verdict. Not by the
// store's own wait(), which writes a warning to the log whenever it ends
// without the key.
bool RollCall::IsThere(const std::string& key, steady_clock::time_point until) {
  milliseconds pause = kFirstPause;
  while (!store_->check({key})) {
    const auto now = steady_clock::now();
    if (now >= until || store_->check({VerdictOf(calls_)})) return false;
    std::this_thread::sleep_for(
        std::min<steady_clock::duration>(pause, until - now));
    pause = std::min(2 * pause, kLongestPause);
  }
  return true;
}

std::string RollCall::KeyOf(uint64_t call, int rank) const {
  return StrCat(prefix_, "/", call, "/", rank);
}

std::string RollCall::VerdictOf(uint64_t call) const {
  return StrCat(prefix_, "/", call);
}

}  // namespace ring_keras::torch_backend
