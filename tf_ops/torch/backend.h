// The back end "ring" of torch.distributed: c10d's collectives by the engine.
#ifndef RING_KERAS_TORCH_BACKEND_H_
#define RING_KERAS_TORCH_BACKEND_H_

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "tf_ops/common/collective_kind.h"
#include "tf_ops/runtime/request.h"
#include "tf_ops/torch/any_receive.h"
#include "tf_ops/torch/roll_call.h"
#include "tf_ops/torch/tensors.h"
#include "tf_ops/torch/work.h"

namespace ring_keras::torch_backend {

// Of one group of ranks, whose communicator is made before and lasts longer.
//
// Every collective of a kind has the same name, so that the n-th call on one
// rank meets the n-th on every other, as c10d wants it; ranks that call it with
// other shapes or types hear of that.
class RingBackend : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  // `ranks`: the group's, as those of the job. `pairs`: the first number of the
  // communicators of two ranks, of which the job has one for each of its ranks;
  // see PairWith(). 0: there are none. `roll_call`: of this group. `timeout`:
  // of calls that give none. `engine_timeout`: after which the engine itself
  // gives up.
  RingBackend(int rank, std::vector<int> ranks, int communicator_id, int pairs,
              RollCall roll_call, std::chrono::milliseconds timeout,
              std::chrono::milliseconds engine_timeout);

  const std::string getBackendName() const override { return "ring"; }
  void setTimeout(std::chrono::milliseconds timeout) override {
    timeout_ = timeout;
  }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return calls_; }
  // Waits until devices have ended what they have been given. What this rank
  // has begun besides, and nobody has waited for, fails.
  void shutdown() override;
  void abort() override;

  WorkPtr broadcast(Tensors& tensors,
                    const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors,
                    const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(
      Tensors& tensors,
      const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(
      Tensors& outputs, Tensors& inputs,
      const c10d::AllgatherOptions& options) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input,
      const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(
      Tensors& outputs, Tensors& inputs,
      const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input,
                        std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const c10d::AllToAllOptions& options) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  // Blocks; names who does not come, and the group goes on. Not the engine's.
  void monitoredBarrier(const c10d::BarrierOptions& options,
                        bool wait_all_ranks) override;

  // With a rank of the group. A tensor is there when both have called; those of
  // one tag arrive in order.
  WorkPtr send(Tensors& tensors, int destination, int tag) override;
  WorkPtr recv(Tensors& tensors, int source, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

  // In memory that the ranks of a host can reduce in place, for buckets.
  bool supportsTensorAlloc(c10::DeviceIndex device) override;
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;

 private:
  // One call, until it is handed to the engine.
  class Call;

  // How many requests are: those that a device has been given, and the others.
  struct UnderWay {
    std::atomic<int> requests{0};
    std::atomic<int> on_device{0};
  };

  // Where ranks meet: all of the group, or this one and another.
  struct Meeting {
    explicit Meeting(int id)
        : communicator_id(id), deadlines(std::make_shared<Deadlines>(id)) {}
    const int communicator_id;
    const std::shared_ptr<Deadlines> deadlines;
    const std::shared_ptr<UnderWay> under_way = std::make_shared<UnderWay>();
  };

  std::vector<Meeting> Meetings();
  // With the rank at this place of the group. Throws if there is none.
  const Meeting& PairWith(int place);
  // From the rank at place `source` to another one; one of them is this one.
  WorkPtr Transfer(Tensors& tensors, int source, int destination, int tag);
  // How ranks call what the one at place `source` sends.
  std::string NameOfSend(int source, int tag) const;
  // Finds a sender for each receive from any rank with this tag, the first one
  // first, until there are no more.
  void FindSenders(int tag);
  enum class Search { kGoesOn, kWaits, kIsOver };
  // The same for the first one, as far as senders are known by now.
  Search FindSender(int tag);
  // The place of a rank that has begun to send with this tag what nobody here
  // is about to receive; none if there is none.
  std::optional<int> FirstSender(int tag);

  WorkPtr AllreduceInto(const Tensors& tensors, const Tensors& outputs,
                        const c10d::ReduceOp& op, Call call);
  // Where the engine has no such reduction: all see all values.
  WorkPtr AllreduceByBits(const Tensors& tensors, const c10d::ReduceOp& op,
                          Call call);
  void AddAllgather(Call& call, const at::Tensor& output,
                    const at::Tensor& input);
  // `outputs_of_inputs`: makes, for each input, the list of what each rank's
  // becomes.
  template <typename Outputs>
  WorkPtr AllgatherEach(const Tensors& inputs,
                        const c10d::AllgatherOptions& options,
                        Outputs outputs_of_inputs);
  void AddReduceScatter(Call& call, const at::Tensor& output,
                        const at::Tensor& input, const c10d::ReduceOp& op);
  // The only one of its call. `splits`: how many elements of `input` each rank
  // gets; `expected`: how many are to come from each. Then `then` runs.
  // `output` is contiguous.
  void AddAlltoall(Call& call, const at::Tensor& output,
                   const at::Tensor& input, std::vector<int64_t> splits,
                   std::vector<int64_t> expected, std::function<void()> then);

  // `body`, a call of `count` requests. If it throws, for this rank's own
  // arguments, the other ranks hear of that.
  template <typename Body>
  WorkPtr Told(CollectiveKind kind, const char* name, size_t count, Body body);

  template <typename Body>
  WorkPtr ToldOfReduction(const c10d::ReduceOp& op, size_t tensors, Body body);

  const std::vector<int> ranks_;
  const Meeting everyone_;
  const int pairs_;
  RollCall roll_call_;
  std::chrono::milliseconds timeout_;
  const std::chrono::milliseconds engine_timeout_;
  std::atomic<uint64_t> calls_{0};
  std::mutex mutex_;
  std::map<int, Meeting> made_;  // By the other's place; guarded by the mutex.

  // Held while a receive begins: so nobody else takes what a rank was found to
  // send.
  std::mutex receiving_;
  // By tag, those without a sender, as they were begun; guarded by receiving_.
  std::map<int, std::deque<c10::intrusive_ptr<AnyReceive>>> any_receives_;
  // Whoever sends most shall not be the only one; guarded by receiving_.
  int last_found_ = 0;
};

// The other ranks hear, in place of `count` requests, why this one has none.
void TellOthers(CollectiveKind kind, const std::string& name,
                int communicator_id, const std::string& why, size_t count = 1);

}  // namespace ring_keras::torch_backend

#endif  // RING_KERAS_TORCH_BACKEND_H_
