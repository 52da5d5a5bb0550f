// How calls from Python become requests, and wait for what becomes of them.
#ifndef RING_KERAS_BINDINGS_CALLS_H_
#define RING_KERAS_BINDINGS_CALLS_H_

#include <pybind11/pybind11.h>

#include <string>
#include <utility>

#include "tf_ops/bindings/errors.h"
#include "tf_ops/bindings/gil.h"
#include "tf_ops/bindings/signals.h"
#include "tf_ops/common/status.h"
#include "tf_ops/runtime/request.h"

namespace ring_keras {

// Without a name, a call is the n-th of its kind.
inline Request MakeRequest(CollectiveKind kind, const std::string& name,
                           int communicator_id) {
  Request request;
  request.kind = kind;
  request.name = name.empty() ? NameOf(kind) : name;
  request.communicator_id = communicator_id;
  return request;
}

// Runs `wait`, which returns a Status, without the GIL. Throws what a signal
// handler has raised meanwhile, or else the error.
template <typename Wait>
void Await(Wait wait) {
  ForgetRaised();
  const Status status = WithoutGil(std::move(wait));
  ThrowIfHandlerRaised();
  ThrowIfError(status);
}

}  // namespace ring_keras

#endif  // RING_KERAS_BINDINGS_CALLS_H_
