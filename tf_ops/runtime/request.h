// One rank's intent to take part in a collective.
#ifndef RING_KERAS_RUNTIME_REQUEST_H_
#define RING_KERAS_RUNTIME_REQUEST_H_

#include <functional>
#include <string>

#include "tf_ops/collectives/arguments.h"
#include "tf_ops/common/status.h"

namespace ring_keras {

struct Request : CollectiveArguments {
  // Pairs this request with its peers'. The same name may be used again: the
  // n-th use on one rank meets the n-th use on every other.
  std::string name;

  int communicator_id = 0;
};

// Called exactly once, from any thread; must not block. Memory of the request
// is no longer touched when it runs, by no device either.
using DoneCallback = std::function<void(const Status&)>;

}  // namespace ring_keras

#endif  // RING_KERAS_RUNTIME_REQUEST_H_
