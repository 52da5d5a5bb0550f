// Memory for a request that outlives the tensors it was given.
#ifndef RING_KERAS_KERNELS_OWNED_COPIES_H_
#define RING_KERAS_KERNELS_OWNED_COPIES_H_

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "tf_ops/common/status.h"
#include "tf_ops/runtime/request.h"

namespace ring_keras {

// Puts copies of the request's inputs, in host memory, in place of inputs and
// outputs. What is returned owns them, so it must live until the request is
// done, which to be its `done` ensures.
//
// Errors: ResourceExhausted; the request is as it was.
inline StatusOr<DoneCallback> OwnCopies(Request* request) {
  using Copies = std::vector<std::unique_ptr<char[]>>;
  auto copies = std::make_shared<Copies>();
  for (const TensorView& input : request->inputs) {
    const size_t nbytes = ElementCount(input.shape) * SizeOf(request->dtype);
    // Large, and nobody above us catches what is thrown.
    std::unique_ptr<char[]> copy(new (std::nothrow) char[nbytes]);
    if (copy == nullptr) {
      return Status(StatusCode::kResourceExhausted,
                    StrCat("no memory for a copy of ", nbytes, " bytes"));
    }
    std::copy_n(static_cast<const char*>(input.data), nbytes, copy.get());
    copies->push_back(std::move(copy));
  }
  for (size_t i = 0; i < copies->size(); ++i) {
    request->inputs[i].data = (*copies)[i].get();
    request->outputs[i] = (*copies)[i].get();
  }
  return DoneCallback([copies](const Status&) {});
}

}  // namespace ring_keras

#endif  // RING_KERAS_KERNELS_OWNED_COPIES_H_
