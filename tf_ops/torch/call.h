// One call of the back end "ring", from its arguments to what torch waits for.
#ifndef RING_KERAS_TORCH_CALL_H_
#define RING_KERAS_TORCH_CALL_H_

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tf_ops/common/collective_kind.h"
#include "tf_ops/torch/backend.h"
#include "tf_ops/torch/streams.h"

namespace ring_keras::torch_backend {

class RingBackend::Call {
 public:
  // `options`: c10d's, of any call of the whole group.
  template <typename Options>
  Call(RingBackend& backend, c10d::OpType type, const char* name,
       const Options& options, Tensors results)
      : Call(backend, backend.everyone_, type, name, !options.asyncOp,
             options.timeout.count() > 0 ? options.timeout : backend.timeout_,
             std::move(results)) {}
  // `waits`: whether the caller does, within this call.
  Call(RingBackend& backend, const Meeting& meeting, c10d::OpType type,
       const char* name, bool waits, std::chrono::milliseconds timeout,
       Tensors results);

  // `tensor`: any of those that travel. The first says on which device all are.
  Request& Add(CollectiveKind kind, std::string name,
               const at::Tensor& tensor = {});

  // Of tensors that are read or written in place.
  at::Tensor InPlace(const at::Tensor& tensor) {
    Keep(tensor);
    return contiguous_.Of(tensor);
  }

  // Memory that must last as long as the call; also what `then` touches, but
  // for the call's results.
  void Keep(const at::Tensor& tensor) { kept_.push_back(tensor); }
  void Finally(std::function<void()> then) { then_ = std::move(then); }

  // A thread that waits anyway carries it out, unless it may have to stop
  // before the engine would, or the tensors are on a GPU.
  WorkPtr Submit();

 private:
  class OnDevice;

  void SubmitInHost(Request request);
  void SubmitOnDevice(Request request,
                      const std::shared_ptr<const Tensors>& memory);

  const bool waits_;
  const bool engine_is_first_;  // To give up waiting.
  const std::shared_ptr<UnderWay> under_way_;
  const int communicator_id_;
  c10::intrusive_ptr<RingWork> work_;
  std::optional<Streams> streams_;  // None: in host memory.
  std::vector<Request> requests_;
  Contiguous contiguous_;
  Tensors kept_;
  std::function<void()> then_;
};

}  // namespace ring_keras::torch_backend

#endif  // RING_KERAS_TORCH_CALL_H_
