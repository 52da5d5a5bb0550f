// send() and recv(): broadcasts among two ranks.
#include <ATen/ATen.h>

#include <algorithm>
#include <thread>

#include "tf_ops/runtime/communicator_id.h"
#include "tf_ops/runtime/runtime.h"
#include "tf_ops/torch/backend.h"
#include "tf_ops/torch/call.h"
#include "tf_ops/torch/completions.h"

namespace ring_keras::torch_backend {
namespace {

// Between two looks for somebody who sends.
constexpr std::chrono::microseconds kShortestNap{20};
constexpr std::chrono::microseconds kLongestNap{1000};

void CheckSendable(const std::vector<at::Tensor>& tensors) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "expected one tensor, got ",
                    tensors.size());
  CheckTensors(tensors);
  TORCH_CHECK_VALUE(
      tensors[0].is_cpu(),
      "[RK670] the back end ring sends between two ranks from host memory "
      "alone, got a tensor on ",
      tensors[0].device(),
      ". Send tensor.cpu(), or use all_to_all, or make a group of NCCL's: "
      "new_group(backend=\"nccl\").");
}

}  // namespace

// All groups that live with the same default group share these communicators.
// Their members need not meet to make one: its number follows from both ranks,
// no third one has it, and it is that of no other pair of either. What one of
// them announces before the other has it is kept.
const RingBackend::Meeting& RingBackend::PairWith(int place) {
  TORCH_CHECK_VALUE(place >= 0 && place < getSize() && place != getRank(),
                    "expected another rank of the group, from 0 to ",
                    getSize() - 1, ", got ", place);
  TORCH_CHECK_VALUE(pairs_ != 0,
                    "[RK161] the back end ring sends between two ranks only if "
                    "it is the default group's: init_process_group(\"ring\"). "
                    "Or make a group of gloo's: new_group(backend=\"gloo\").");
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = made_.find(place);
  if (found != made_.end()) return found->second;
  std::vector<int> both{ranks_[getRank()], ranks_[place]};
  std::sort(both.begin(), both.end());
  Runtime& runtime = Runtime::Get();
  // Fails if this group's job has ended: the numbers are another one's now.
  StatusOr<std::vector<int>> everyone =
      runtime.CommunicatorRanks(everyone_.communicator_id);
  if (everyone.ok()) everyone = runtime.CommunicatorRanks(0);
  TORCH_CHECK_WITH(DistBackendError, everyone.ok(),
                   everyone.status().CodedMessage());
  const int id =
      pairs_ + (both[0] + both[1]) % static_cast<int>(everyone.value().size());
  // Another group may have made it.
  const Status joined = runtime.JoinCommunicator(LocalCommunicatorId(id), both);
  const StatusOr<std::vector<int>> ranks = runtime.CommunicatorRanks(id);
  TORCH_CHECK_WITH(DistBackendError, ranks.ok() && ranks.value() == both,
                   joined.CodedMessage());
  return made_.try_emplace(place, id).first->second;
}

std::string RingBackend::NameOfSend(int source, int tag) const {
  return StrCat("torch/send/", LocalCommunicatorId(everyone_.communicator_id),
                "/", source, "/", tag);
}

RingBackend::WorkPtr RingBackend::Transfer(Tensors& tensors, int source,
                                           int destination, int tag) {
  const bool sends = source == getRank();
  const Meeting& meeting = PairWith(sends ? destination : source);
  const std::string name = NameOfSend(source, tag);
  try {
    CheckSendable(tensors);
    Call call(*this, meeting, sends ? c10d::OpType::SEND : c10d::OpType::RECV,
              sends ? "ring:send" : "ring:recv", /*waits=*/false, timeout_,
              tensors);
    const Moved moved = MovedAs(tensors[0]);
    const at::Tensor flat =
        sends ? tensors[0].contiguous() : call.InPlace(tensors[0]);
    call.Keep(flat);
    Request& request = call.Add(CollectiveKind::kBroadcast, name, tensors[0]);
    request.dtype = moved.dtype;
    request.root = ranks_[source] < ranks_[destination] ? 0 : 1;
    request.inputs = {ViewOf(flat, {flat.numel() * moved.per_element})};
    request.outputs = {flat.mutable_data_ptr()};
    return call.Submit();
  } catch (const c10::Error& problem) {
    TellOthers(CollectiveKind::kBroadcast, name, meeting.communicator_id,
               problem.what_without_backtrace());
    throw;
  }
}

RingBackend::WorkPtr RingBackend::send(Tensors& tensors, int destination,
                                       int tag) {
  return Transfer(tensors, getRank(), destination, tag);
}

RingBackend::WorkPtr RingBackend::recv(Tensors& tensors, int source, int tag) {
  std::lock_guard<std::mutex> lock(receiving_);
  return Transfer(tensors, source, getRank(), tag);
}

// The engine knows who has entered a send. A thread asks it, and enters the
// receive from that rank for the first who waits.
RingBackend::WorkPtr RingBackend::recvAnysource(Tensors& tensors, int tag) {
  CheckSendable(tensors);
  for (int place = 0; place < getSize(); ++place) {
    if (place != getRank()) PairWith(place);
  }
  auto receive = c10::make_intrusive<AnyReceive>(getRank(), tensors, timeout_);
  bool is_first = false;
  {
    std::lock_guard<std::mutex> lock(receiving_);
    auto& receives = any_receives_[tag];
    receives.push_back(receive);
    is_first = receives.size() == 1;
  }
  if (is_first) {
    RunOnThread([self = c10::intrusive_ptr<RingBackend>::reclaim_copy(this),
                 tag] { self->FindSenders(tag); });
  }
  return receive;
}

void RingBackend::FindSenders(int tag) {
  auto nap = kShortestNap;
  while (!AreThreadsEnding()) {
    switch (FindSender(tag)) {
      case Search::kIsOver:
        return;
      case Search::kGoesOn:
        nap = kShortestNap;
        break;
      case Search::kWaits:
        std::this_thread::sleep_for(nap);
        nap = std::min(2 * nap, kLongestNap);
    }
  }
}

RingBackend::Search RingBackend::FindSender(int tag) {
  std::unique_lock<std::mutex> lock(receiving_);
  auto found = any_receives_.find(tag);
  if (found == any_receives_.end()) return Search::kIsOver;
  const c10::intrusive_ptr<AnyReceive> first = found->second.front();
  lock.unlock();
  const bool has_failed = first->HasFailed();  // Tells whoever wants to know.
  lock.lock();
  found = any_receives_.find(tag);
  if (found == any_receives_.end()) return Search::kIsOver;
  auto& receives = found->second;
  if (receives.front() != first) return Search::kGoesOn;

  WorkPtr receive;
  std::optional<int> source;
  std::exception_ptr error;
  try {
    if (!has_failed) {
      source = FirstSender(tag);
      if (!source.has_value()) return Search::kWaits;
    }
    if (first->Claim()) {
      receive = Transfer(first->tensors(), *source, getRank(), tag);
    }
  } catch (...) {
    error = std::current_exception();
  }
  receives.pop_front();
  const bool is_last = receives.empty();
  if (is_last) any_receives_.erase(found);
  lock.unlock();
  if (receive != nullptr) first->Begin(*source, std::move(receive));
  if (error != nullptr && first->Claim()) first->Fail(error);
  return is_last ? Search::kIsOver : Search::kGoesOn;
}

std::optional<int> RingBackend::FirstSender(int tag) {
  std::vector<int> places;
  std::vector<std::pair<int, std::string>> names;
  for (int i = 1; i <= getSize(); ++i) {
    const int place = (last_found_ + i) % getSize();
    if (place == getRank()) continue;
    places.push_back(place);
    names.emplace_back(PairWith(place).communicator_id, NameOfSend(place, tag));
  }
  const StatusOr<int> first = Runtime::Get().FirstAwaited(std::move(names));
  TORCH_CHECK_WITH(DistBackendError, first.ok(), first.status().CodedMessage());
  if (first.value() < 0) return std::nullopt;
  last_found_ = places[first.value()];
  return last_found_;
}

}  // namespace ring_keras::torch_backend
