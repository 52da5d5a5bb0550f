// send() and recv(): broadcasts among two ranks.
#include <ATen/ATen.h>

#include <algorithm>

#include "tf_ops/runtime/communicator_id.h"
#include "tf_ops/runtime/runtime.h"
#include "tf_ops/torch/backend.h"
#include "tf_ops/torch/call.h"

namespace ring_keras::torch_backend {

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

RingBackend::WorkPtr RingBackend::Transfer(Tensors& tensors, int source,
                                           int destination, int tag) {
  const bool sends = source == getRank();
  const Meeting& meeting = PairWith(sends ? destination : source);
  const std::string name =
      StrCat("torch/send/", LocalCommunicatorId(everyone_.communicator_id), "/",
             source, "/", tag);
  try {
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
  return Transfer(tensors, source, getRank(), tag);
}

RingBackend::WorkPtr RingBackend::recvAnysource(Tensors& /*tensors*/,
                                                int /*tag*/) {
  TORCH_CHECK_VALUE(false,
                    "[RK160] the back end ring receives from a rank that it is "
                    "told, as in recv(tensor, src=0). To hear from any rank, "
                    "send who it is with a collective, or make a group of "
                    "gloo's: new_group(backend=\"gloo\").");
}

}  // namespace ring_keras::torch_backend
